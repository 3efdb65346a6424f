'use strict';
(() => {
  // A stream of a page is open only while somebody can see the page: htmx gets this class in place of EventSource.
  class VisibleSource {
    constructor(url) {
      this.url = url;
      this.listeners = [];
      this.closed = false;
      this.source = null;
      this.follow = () => (document.visibilityState === 'hidden' ? this.disconnect() : this.connect());
      document.addEventListener('visibilitychange', this.follow);
      this.follow();
    }

    get readyState() {
      if (this.closed) return EventSource.CLOSED;
      return this.source ? this.source.readyState : EventSource.CONNECTING;
    }

    connect() {
      if (this.closed || this.source) return;
      this.source = new EventSource(this.url);
      this.listeners.forEach(([type, listener]) => this.source.addEventListener(type, listener));
      this.source.onopen = (event) => this.onopen && this.onopen(event);
      this.source.onerror = (event) => {
        if (this.source.readyState === EventSource.CLOSED) this.close(); // htmx makes a new one
        if (this.onerror) this.onerror(event);
      };
    }

    disconnect() {
      if (this.source) this.source.close();
      this.source = null;
    }

    addEventListener(type, listener) {
      this.listeners.push([type, listener]);
      if (this.source) this.source.addEventListener(type, listener);
    }

    removeEventListener(type, listener) {
      this.listeners = this.listeners.filter(([t, l]) => t !== type || l !== listener);
      if (this.source) this.source.removeEventListener(type, listener);
    }

    close() {
      this.closed = true;
      document.removeEventListener('visibilitychange', this.follow);
      this.disconnect();
    }
  }

  htmx.createEventSource = (url) => new VisibleSource(url);

  // An event replaces all elements of a block. Focus and scroll positions go to the elements that stand for the old ones:
  // those with the same address, name and label, at the same position among them.
  const identify = (e) => [e.tagName, ...['href', 'name', 'value', 'aria-label', 'aria-labelledby'].map((a) => e.getAttribute(a))].join('\n');

  function locate(block, element) {
    const identity = identify(element);
    const twins = [...block.querySelectorAll(element.tagName)].filter((e) => identify(e) === identity);
    const position = twins.indexOf(element);
    return () => [...block.querySelectorAll(element.tagName)].filter((e) => identify(e) === identity)[position];
  }

  let restore = [];
  document.addEventListener('htmx:sseBeforeMessage', ({target: block}) => {
    restore = [...block.querySelectorAll('.scroll, pre')].filter((e) => e.scrollLeft || e.scrollTop).map((e) => {
      const [find, left, top] = [locate(block, e), e.scrollLeft, e.scrollTop];
      return () => find()?.scrollTo({left, top, behavior: 'instant'});
    });
    const focused = document.activeElement;
    if (focused !== block && block.contains(focused)) {
      const find = locate(block, focused);
      restore.push(() => find()?.focus({preventScroll: true}));
    }
  });
  document.addEventListener('htmx:sseMessage', () => restore.splice(0).forEach((put) => put()));
})();
