// Figures and tokens as people read them.

export function visible(text: string): string {
  if (text === "") return "∅";
  return text.replace(/ /g, "·").replace(/\r?\n/g, "⏎").replace(/\t/g, "⇥");
}

/** Words for a token that has no letters to read out; nothing for others. */
export function spoken(text: string): string[] {
  if (text === "") return ["empty token"];
  if (/^\s+$/.test(text)) return [text.includes("\n") ? "line break" : "space"];
  return [];
}

export function shortened(text: string, length: number): string {
  const letters = [...text];
  return letters.length > length ? letters.slice(0, length - 1).join("") + "…" : text;
}

export function percent(share: number): string {
  if (share > 0 && share < 0.01) return "<1\u202f%";
  return `${Math.round(share * 100)}\u202f%`;
}

export function duration(seconds: number): string {
  if (seconds === 0) return "0\u00a0ms";
  if (seconds < 0.0995) return `${(seconds * 1000).toFixed(seconds < 0.00995 ? 1 : 0)}\u00a0ms`;
  return seconds < 0.9995 ? `${Math.round(seconds * 1000)}\u00a0ms` : `${seconds.toFixed(2)}\u00a0s`;
}

export function rate(value: number): string {
  return `${value < 100 ? value.toFixed(1) : Math.round(value)}\u00a0tok/s`;
}

export function counted(number: number, noun: string, plural = noun + "s"): string {
  return `${number} ${number === 1 ? noun : plural}`;
}
