"""Print the documentation of recipes: python -m regard.recipe > docs/recipes.md"""

from regard.recipe.page import document

print(document(), end="")
