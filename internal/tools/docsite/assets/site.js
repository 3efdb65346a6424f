// The search, and the navigation of narrow screens. All scripts work from file:// as well.
'use strict';

const box = document.querySelector('search'), input = box.querySelector('input'), results = document.getElementById('results');
const root = new URL('.', document.currentScript.src).href;
let engine;

// load loads the index with the first use of the search.
function load() {
  const script = src => new Promise((done, failed) => {
    const s = document.createElement('script');
    s.src = root + src;
    s.onload = done;
    s.onerror = failed;
    document.head.append(s);
  });
  engine ??= Promise.all([script('minisearch.js'), script('search-index.js')]).then(() => {
    const index = new MiniSearch({
      fields: ['heading', 'title', 'text'],
      storeFields: ['page', 'title', 'anchor', 'heading', 'text'],
      searchOptions: {
        boost: {heading: 4, title: 2}, prefix: true, combineWith: 'AND', fuzzy: term => term.length > 5 ? 0.15 : false,
        boostDocument: (id, term, stored) => /^docs\/decisions\/|^CHANGELOG/.test(stored.page) ? 0.3 : 1,
      },
    });
    index.addAll(window.searchEntries.map((section, id) => ({id, ...section})));
    return index;
  });
  return engine;
}

// excerpt returns the words around the first of terms in text, with the term marked.
function excerpt(text, terms) {
  const at = Math.min(...terms.map(t => text.toLowerCase().indexOf(t)).filter(i => i >= 0));
  if (at === Infinity) return [text.slice(0, 120)];
  const term = terms.find(t => text.toLowerCase().startsWith(t, at)), mark = document.createElement('mark');
  mark.textContent = text.substr(at, term.length);
  return [(at > 60 ? '… ' : '') + text.slice(Math.max(0, at - 60), at), mark, text.slice(at + term.length, at + 120)];
}

async function search() {
  const query = input.value.trim();
  if (query === '') {
    results.hidden = true;
    return;
  }
  const index = await load();
  if (query !== input.value.trim()) return; // there is a newer one
  const found = index.search(query).slice(0, 12), list = document.createElement('ol');
  for (const hit of found) {
    const item = document.createElement('li'), link = document.createElement('a'), where = document.createElement('b'), text = document.createElement('span');
    link.href = root + hit.page + (hit.anchor ? '#' + hit.anchor : '');
    where.textContent = hit.heading && hit.heading !== hit.title ? hit.title + ' › ' + hit.heading : hit.title;
    text.append(...excerpt(hit.text, hit.terms));
    link.append(where, text);
    item.append(link);
    list.append(item);
  }
  results.replaceChildren(found.length > 0 ? list : 'Nothing found.');
  results.hidden = false;
}

input.addEventListener('focus', load);
input.addEventListener('input', search);
input.addEventListener('keydown', event => {
  if (event.key === 'Enter') results.querySelector('a')?.click();
});
document.addEventListener('keydown', event => {
  if (event.key === '/' && !event.target.closest('input')) {
    event.preventDefault();
    input.focus();
  } else if (event.key === 'Escape') {
    results.hidden = true;
  }
});
document.addEventListener('click', event => {
  if (!box.contains(event.target) || event.target.closest('#results a')) results.hidden = true;
});

// On a narrow screen the list of documents is closed at first.
const narrow = matchMedia('(max-width: 50rem)');
const fold = () => { document.querySelector('nav details').open = !narrow.matches; };
narrow.addEventListener('change', fold);
fold();
