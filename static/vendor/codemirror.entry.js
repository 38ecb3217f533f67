export { EditorState, Compartment, Prec } from "@codemirror/state";
export { EditorView, keymap, lineNumbers, placeholder, drawSelection, highlightActiveLine } from "@codemirror/view";
export { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
export { HighlightStyle, syntaxHighlighting, bracketMatching } from "@codemirror/language";
export { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
export { sql, PostgreSQL, SQLDialect } from "@codemirror/lang-sql";
export { tags } from "@lezer/highlight";
