"""The keyboard shortcuts. `ways.js` finds the target of a shortcut on the page by its attribute
`data-shortcut`; a shortcut without a target on the page does nothing."""

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
