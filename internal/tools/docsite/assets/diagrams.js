// Draws the Mermaid diagrams of a page, in the colours that the reader prefers.
'use strict';

const dark = matchMedia('(prefers-color-scheme: dark)');
const sources = [...document.querySelectorAll('pre.mermaid')].map(element => [element, element.textContent]);

async function draw() {
  mermaid.initialize({startOnLoad: false, securityLevel: 'strict', theme: dark.matches ? 'dark' : 'default', fontFamily: 'system-ui, sans-serif'});
  for (const [element, source] of sources) {
    element.removeAttribute('data-processed');
    element.textContent = source;
  }
  await mermaid.run({nodes: sources.map(([element]) => element)});
  for (const svg of document.querySelectorAll('pre.mermaid > svg')) {
    svg.dataset.scheme = dark.matches ? 'dark' : 'light';
    svg.style.minWidth = 0.65 * svg.viewBox.baseVal.width + 'px'; // smaller, its text cannot be read: then it scrolls
  }
}

dark.addEventListener('change', draw);
draw();
