// A reply's Markdown as a safe fragment of the page.  HTML in it is shown as text; nothing is loaded.

import DOMPurify from "dompurify";
import { Marked } from "marked";

function escaped(text: string): string {
  return text.replace(/[&<>"']/g, (letter) => `&#${letter.charCodeAt(0)};`);
}

const marked = new Marked({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    // A picture would be fetched from elsewhere: its address is shown instead.
    image: ({ text, href }) => escaped(`${text} (${href})`),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    heading({ tokens, depth }) {
      const level = Math.min(6, depth + 2);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
  },
});

const ALLOWED_TAGS = [
  ...["p", "br", "hr", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code"],
  ...["a", "strong", "em", "del", "table", "thead", "tbody", "tr", "th", "td"],
];

DOMPurify.addHook("afterSanitizeAttributes", (element) => {
  if (element.tagName === "A") {
    element.setAttribute("target", "_blank");
    element.setAttribute("rel", "noopener noreferrer");
  }
  // They scroll sideways, so the keyboard must reach them.
  if (element.tagName === "PRE" || element.tagName === "TABLE") element.setAttribute("tabindex", "0");
});

export function rendered(text: string): DocumentFragment {
  return DOMPurify.sanitize(marked.parse(text, { async: false }), {
    ALLOWED_TAGS,
    ALLOWED_ATTR: ["href", "title", "start", "align"],
    ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
    RETURN_DOM_FRAGMENT: true,
  });
}
