// The editor of the query page: CodeMirror in the place of the text field, which keeps the text for
// the form.
"use strict";

(() => {
  const field = document.querySelector("textarea[data-run]");
  if (!field) return;
  const { run } = Perch.sql;
  const { EditorView, EditorState, Compartment, HighlightStyle, Prec, keymap, tags } = CodeMirror;

  const STYLE = HighlightStyle.define([
    { tag: [tags.keyword, tags.operatorKeyword, tags.modifier], class: "sql-keyword" },
    { tag: [tags.string, tags.special(tags.string)], class: "sql-string" },
    { tag: [tags.number, tags.bool, tags.null], class: "sql-number" },
    { tag: [tags.typeName, tags.standard(tags.name)], class: "sql-type" },
    { tag: [tags.comment, tags.lineComment, tags.blockComment], class: "sql-comment" },
  ]);

  // Words that Postgres does not reserve, and that are mostly names of columns and functions.
  const NAMES = new Set(["avg", "count", "id", "key", "max", "min", "name", "nothing", "sum", "value"]);
  const { spec } = CodeMirror.PostgreSQL;
  const keywords = spec.keywords.split(" ").filter((word) => !NAMES.has(word)).join(" ");
  const DIALECT = CodeMirror.SQLDialect.define({ ...spec, keywords });

  // The names that are completed: those of the tree of tables, once it is shown. After a table's name
  // and a dot CodeMirror offers its columns; elsewhere, those of the tables that are named anywhere.
  const language = new Compartment();
  let schema = {};

  function columns(context) {
    const word = context.matchBefore(/\w+/);
    if (!word || context.matchBefore(/\.\w+/)) return null;
    const named = new Set(context.state.doc.toString().match(/\w+/g));
    const tables = Object.values(schema).flatMap(Object.entries);
    const options = tables.flatMap(([name, found]) => (named.has(name) ? found : []));
    return { from: word.from, options, validFor: /^\w*$/ };
  }

  function sql() {
    schema = {};
    for (const list of document.querySelectorAll("#tables [data-schema]")) {
      const tables = schema[list.dataset.schema] = {};
      for (const table of list.querySelectorAll("[data-table]")) {
        tables[table.dataset.table] = [...table.querySelectorAll("[data-column]")].map((column) => ({
          label: column.dataset.column, detail: column.querySelector("small").textContent, type: "property",
        }));
      }
    }
    return [
      CodeMirror.sql({ dialect: DIALECT, schema, defaultSchema: "public", upperCaseKeywords: true }),
      DIALECT.language.data.of({ autocomplete: columns }),
    ];
  }

  // Chrome keeps the look of marked words that are typed over, by inline styles, which the page's
  // policy forbids and reports.
  function replaceSelected(event) {
    const isTyped = event.inputType === "insertText" && event.data && !event.isComposing;
    const selected = getSelection();
    const isLong = event.data?.length > 1;
    if (!isTyped || (selected.isCollapsed && !isLong) || /^["'(\[{]$/.test(event.data)) return false;
    event.preventDefault();
    const ends = [[selected.anchorNode, selected.anchorOffset], [selected.focusNode, selected.focusOffset]];
    const [from, to] = ends.map((end) => view.posAtDOM(...end)).sort((a, b) => a - b);
    view.dispatch({
      changes: { from, to, insert: event.data }, selection: { anchor: from + event.data.length },
      // Nothing is completed after a longer text.
      userEvent: isLong ? "input.paste" : "input.type", scrollIntoView: true,
    });
    return true;
  }

  const view = new EditorView({
    state: EditorState.create({
      doc: field.value,
      extensions: [
        Prec.highest(keymap.of([{ key: "Mod-Enter", run }])),
        CodeMirror.history(),
        CodeMirror.bracketMatching(),
        CodeMirror.closeBrackets(),
        CodeMirror.autocompletion({ icons: false, maxRenderedOptions: 10 }),
        // Tab is not bound: it moves the focus on, as in every other field.
        keymap.of([
          ...CodeMirror.closeBracketsKeymap, ...CodeMirror.completionKeymap,
          ...CodeMirror.historyKeymap, ...CodeMirror.defaultKeymap,
        ]),
        CodeMirror.syntaxHighlighting(STYLE),
        CodeMirror.placeholder(field.placeholder),
        CodeMirror.lineNumbers(),
        EditorView.lineWrapping,
        EditorView.domEventHandlers({ beforeinput: replaceSelected }),
        EditorView.contentAttributes.of({ "aria-labelledby": "sql-label", autocapitalize: "off" }),
        EditorView.updateListener.of((update) => {
          if (!update.docChanged) return;
          field.value = view.state.doc.toString();
          document.dispatchEvent(new CustomEvent("perch:typed"));
        }),
        language.of(sql()),
      ],
    }),
  });
  const hadFocus = document.activeElement === field;
  const selection = { anchor: field.selectionStart, head: field.selectionEnd };
  field.after(view.dom);
  field.hidden = true;
  if (hadFocus) {
    view.dispatch({ selection });
    view.focus();
  }
  // The label names the editor now.
  document.getElementById("sql-label").removeAttribute("for");

  Perch.sql = {
    get text() { return view.state.doc.toString(); },
    set text(text) {
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
    },
    focus: () => view.focus(),
    run,
  };

  // Select the place of an error, if the reader is still typing. The server counts characters, the
  // editor UTF-16 units.
  function select(range) {
    const characters = Array.from(Perch.sql.text);
    const [anchor, head] = range.split(",").map((at) => characters.slice(0, at).join("").length);
    if (head <= view.state.doc.length) view.dispatch({ selection: { anchor, head }, scrollIntoView: true });
  }

  document.addEventListener("htmx:afterSwap", ({ detail }) => {
    if (detail.target.id === "tables") view.dispatch({ effects: language.reconfigure(sql()) });
    const mark = detail.target.id === "answer" && document.querySelector("#answer [data-mark]");
    if (mark && view.hasFocus) select(mark.dataset.mark);
  });
})();
