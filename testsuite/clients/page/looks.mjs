// A page's looks to its reader, for the tests of all pages.

/** In the page: what is wider than the window, the page's colours, and the least contrast between a text and what is behind it. */
export function contrasts() {
  const channels = (color) => color.match(/[\d.]+/g).map(Number);
  const light = (color) => {
    const [r, g, b] = channels(color).map((value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    const color = getComputedStyle(element).backgroundColor;
    return (channels(color)[3] ?? 1) > 0 || !element.parentElement ? color : behind(element.parentElement);
  };
  const texts = [...document.querySelectorAll('body *')].filter((element) =>
    element.checkVisibility() && [...element.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.textContent.trim()));
  const contrast = (element) => {
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))].sort((a, b) => b - a);
    return (a + 0.05) / (b + 0.05);
  };
  const { scrollWidth, clientWidth } = document.documentElement;
  const wide = [...document.querySelectorAll('main *')].filter((element) => element.checkVisibility() && element.getBoundingClientRect().right > clientWidth + 1);
  return {
    overflow: scrollWidth - clientWidth,
    wide: wide.filter((element) => !element.closest('thead')).map((element) => element.outerHTML.slice(0, 80)),
    background: getComputedStyle(document.body).backgroundColor,
    contrast: Math.min(...texts.map(contrast)),
    texts: texts.length,
  };
}
