"""Pages: one HTML file that opens from disk, without network.

    shell     header, sections, tables and data of any page
    formulas  LaTeX to MathML, and x_n^2 within a text
    charts    lines, points and intervals as SVG
    arrays    arrays as text, and which of them fit in a page
    heads     the numbers of a head: entropy, distance, where it attends
    views     an answer or a tensor as the data of a page
    media     the picture or sound of an input
    attend    `regard attend`: asks a model and makes the page
    answers   `regard.show`
    tensors   `regard.show_weights`
    figure    the same map as PNG or SVG, without a browser
    report    `regard report`: the report of a run, with run_record, run_sections, findings and
              small_maps

docs/architecture.md describes the data of a page.
"""
