// A clock that only moves when told: timers, animation frames and dates of a page become a function of its steps.
(() => {
  const realTimeout = window.setTimeout.bind(window);
  let now = 1700000000000, start = now, next = 1;
  const due = new Map();
  const add = (fn, wait, every, args) => {
    const id = next++;
    due.set(id, { at: now + Math.max(every ? 4 : 0, Number(wait) || 0), fn, every, args, id });
    return id;
  };
  window.setTimeout = (fn, wait, ...args) => add(fn, wait, 0, args);
  window.setInterval = (fn, wait, ...args) => add(fn, wait, Math.max(4, Number(wait) || 0), args);
  window.requestAnimationFrame = fn => add(() => fn(now - start), 16, 0, []);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = id => { due.delete(id); };
  const RealDate = Date;
  const StillDate = function (...args) {
    if (!new.target) return new RealDate(now).toString();
    return args.length ? new RealDate(...args) : new RealDate(now);
  };
  StillDate.prototype = RealDate.prototype;
  StillDate.now = () => now; StillDate.parse = RealDate.parse; StillDate.UTC = RealDate.UTC;
  window.Date = StillDate;
  performance.now = () => now - start;
  // Handlers set by script leave a mark that the page tree can see.
  const listen = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (kind, ...rest) {
    if (['click', 'mousedown', 'mouseup', 'pointerdown'].includes(kind) && this instanceof Element
        && this !== document.body && this !== document.documentElement && !(this.id in { wrap: 1, area: 1, query: 1 }))
      this.setAttribute('data-terrella-listens', '');
    return listen.call(this, kind, ...rest);
  };
  window.terrellaAdvance = milliseconds => {
    const end = now + milliseconds;
    for (let turns = 0; turns < 10000; turns++) {
      let first = null;
      for (const one of due.values()) if (one.at <= end && (!first || one.at < first.at || (one.at === first.at && one.id < first.id))) first = one;
      if (!first) break;
      now = Math.max(now, first.at);
      if (first.every) first.at = now + first.every; else due.delete(first.id);
      if (typeof first.fn === 'function') try { first.fn(...(first.args || [])); } catch (error) { console.error(String(error)); }
    }
    now = end;
  };
})();
