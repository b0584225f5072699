// A clock that moves only when told to: the timers, animation frames and dates of a page become a
// function of its steps.
(() => {
  const start = 1700000000000;
  let now = start, nextId = 1;
  const timers = new Map();
  const add = (callback, wait, interval, args) => {
    const id = nextId++;
    const at = now + Math.max(interval ? 4 : 0, Number(wait) || 0);
    timers.set(id, { at, callback, interval, args, id });
    return id;
  };
  const cancel = id => { timers.delete(id); };
  window.setTimeout = (callback, wait, ...args) => add(callback, wait, 0, args);
  window.setInterval = (callback, wait, ...args) =>
    add(callback, wait, Math.max(4, Number(wait) || 0), args);
  window.requestAnimationFrame = callback => add(() => callback(now - start), 16, 0, []);
  window.clearTimeout = window.clearInterval = window.cancelAnimationFrame = cancel;

  const RealDate = Date;
  const FrozenDate = function (...args) {
    if (!new.target) return new RealDate(now).toString();
    return args.length ? new RealDate(...args) : new RealDate(now);
  };
  FrozenDate.prototype = RealDate.prototype;
  FrozenDate.now = () => now;
  FrozenDate.parse = RealDate.parse;
  FrozenDate.UTC = RealDate.UTC;
  window.Date = FrozenDate;
  performance.now = () => now - start;

  // Click handlers added by script leave an attribute that the page tree can see.
  const CLICK_EVENTS = ['click', 'mousedown', 'mouseup', 'pointerdown'];
  const isWidget = target => target instanceof Element
    && target !== document.body && target !== document.documentElement
    && !(target.id in { wrap: 1, area: 1, query: 1 });
  const addEventListener = EventTarget.prototype.addEventListener;
  EventTarget.prototype.addEventListener = function (type, ...rest) {
    if (CLICK_EVENTS.includes(type) && isWidget(this)) {
      this.setAttribute('data-terrella-listens', '');
    }
    return addEventListener.call(this, type, ...rest);
  };

  const isBefore = (a, b) => a.at < b.at || (a.at === b.at && a.id < b.id);
  const nextTimer = end => {
    let first = null;
    for (const timer of timers.values()) {
      if (timer.at <= end && (!first || isBefore(timer, first))) first = timer;
    }
    return first;
  };
  window.terrellaAdvance = milliseconds => {
    const end = now + milliseconds;
    for (let calls = 0; calls < 10000; calls++) {
      const timer = nextTimer(end);
      if (!timer) break;
      now = Math.max(now, timer.at);
      if (timer.interval) timer.at = now + timer.interval;
      else timers.delete(timer.id);
      if (typeof timer.callback !== 'function') continue;
      try {
        timer.callback(...(timer.args || []));
      } catch (error) {
        console.error(String(error));
      }
    }
    now = end;
  };
})();
