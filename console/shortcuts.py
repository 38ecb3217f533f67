"""What keys do. `ways.js` looks for what they lead to by its `data-shortcut`, so that a key which
leads to nothing on a page does nothing there."""

ANYWHERE = [
    (("Ctrl", "K"), "Go to a page, a project, an endpoint, a branch, or do something"),
    (("?",), "This list"),
    (("/",), "To the filter of the page"),
    (("Esc",), "Close what is open"),
    (("g", "p"), "Projects"),
    (("g", "a"), "Activity of the account"),
    (("g", "w"), "Webhooks"),
    (("g", "k"), "API keys"),
    (("g", "h"), "Status of the service, for who runs it"),
    (("g", "l"), "Look and shortcuts"),
]
IN_A_PROJECT = [
    (("g", "e"), "Endpoints"),
    (("g", "b"), "Branches"),
    (("g", "o"), "Operations"),
    (("g", "v"), "Events"),
    (("g", "q"), "Query"),
    (("g", "s"), "Settings"),
]
ON_THE_QUERY_PAGE = [(("Ctrl", "Enter"), "Run what is written")]
GROUPS = [
    ("Anywhere", ANYWHERE),
    ("In a project", IN_A_PROJECT),
    ("On the query page", ON_THE_QUERY_PAGE),
]
