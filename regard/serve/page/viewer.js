/* Reports and pages of the lab, shown over the page.

   They have scripts of their own, so they are shown in a frame that runs them as another origin:
   without the page, its key and the network. A frame cannot send the key. The server gives whoever
   reads a document with the key a query with which a frame may read it, for a minute. */

import { address, request } from "./api.js";
import { button, dialog, icon, make, save } from "./dom.js";

const VIEW = "X-Regard-View";

/** A button that opens a document of the server. */
export function documentButton(path, { text, title, fileName }) {
  return button(text, { icon: "open" }, () => openDocument(path, title, fileName));
}

async function openDocument(path, title, fileName) {
  const stopping = new AbortController();
  const body = make("div", { class: "viewer-body" }, make("p", { class: "muted" }, "Asking the server…"));
  const node = dialog(title, body, { name: "viewer", onclose: () => stopping.abort() });
  let content;
  let query;
  try {
    const response = await request(path, { signal: stopping.signal });
    query = response.headers.get(VIEW);
    content = await response.text();
  } catch (error) {
    if (error.kind !== "stopped") body.replaceChildren(make("p", { class: "wrong" }, error.message));
    return;
  }
  if (stopping.signal.aborted) return;
  const source = address(query ? `${path}?${query}` : path);
  body.replaceChildren(make("iframe", { src: source, title, sandbox: "allow-scripts allow-downloads", referrerpolicy: "no-referrer" }));
  const tools = make("span", { class: "row viewer-tools" }, button("Save", { icon: "down", class: "plain" }, () => save(fileName, content, "text/html")));
  if (!query) tools.prepend(make("a", { class: "button plain", href: source, target: "_blank", rel: "noopener" }, icon("open", 16), make("span", {}, "New tab")));
  node.querySelector(".dialog-head h2").after(tools);
}
