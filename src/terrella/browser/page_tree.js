// Runs in an isolated world of a page: sees the same DOM, shares no JavaScript with it, so that a page cannot
// change what is reported. Roles and names are Chromium's own accessibility computation.
(() => {
  if (globalThis.terrella) return;
  const known = new Map();
  let ids = new WeakMap(), next = 1;
  const SHAPES = new Set(['circle', 'rect', 'polygon', 'path', 'ellipse', 'line', 'text', 'image']);
  const PASS = new Set(['', 'generic', 'none', 'presentation', 'paragraph', 'rowgroup', 'LabelText', 'emphasis', 'strong',
    'subscript', 'superscript', 'code', 'time', 'mark', 'insertion', 'deletion', 'blockquote', 'LineBreak', 'status']);
  const CONTROLS = new Set(['button', 'link', 'textbox', 'searchbox', 'combobox', 'listbox', 'checkbox', 'radio', 'tab',
    'menuitem', 'option', 'slider', 'spinbutton', 'switch', 'treeitem', 'image', 'menuitemcheckbox', 'menuitemradio']);
  const clean = text => (text || '').replace(/\s+/g, ' ').trim();

  function idOf(el) {
    if (!ids.has(el)) { ids.set(el, next); known.set(next, new WeakRef(el)); next += 1; }
    return ids.get(el);
  }
  function isShown(el) {
    return el.checkVisibility ? el.checkVisibility({ visibilityProperty: true }) : true;
  }
  function isPointer(el, style) {
    if (el.hasAttribute('onclick') || el.hasAttribute('data-terrella-listens')) return true;
    if (style.cursor !== 'pointer') return false;  // inherited: only where it begins
    return !el.parentElement || getComputedStyle(el.parentElement).cursor !== 'pointer';
  }
  function describe(el, role, style) {
    const props = {};
    if (el instanceof HTMLInputElement || el instanceof HTMLTextAreaElement || el instanceof HTMLSelectElement) {
      const kind = el.type;
      if (kind === 'checkbox' || kind === 'radio') { if (el.checked) props.checked = 'true'; }
      else if (kind === 'password') { if (el.value) props.value = '*'.repeat(el.value.length); }
      else if (el instanceof HTMLSelectElement) props.value = clean(el.selectedOptions[0] && el.selectedOptions[0].text);
      else if (!['submit', 'button', 'image', 'reset', 'file'].includes(kind) && el.value) props.value = el.value;  // to the letter
      if (el instanceof HTMLTextAreaElement) props.multiline = 'true';
      if (el.disabled) props.disabled = 'true';
      if (el.readOnly) props.readonly = 'true';
      if (!['submit', 'button', 'image', 'reset', 'checkbox', 'radio'].includes(kind) && el.placeholder)
        props.placeholder = clean(el.placeholder);
    } else if (el.disabled) props.disabled = 'true';
    for (const state of ['checked', 'selected', 'expanded', 'pressed', 'valuenow']) {
      const value = el.getAttribute('aria-' + state);
      if (value && value !== 'false') props[state] = value;
    }
    if (el instanceof HTMLOptionElement && el.selected) props.selected = 'true';
    const kind = typeof el.className === 'string' ? el.className : '';
    if (!props.selected && /(^|[\s-])(selected|active|checked)(\s|$)/.test(kind) && !(el instanceof HTMLInputElement)) props.selected = 'true';
    if (el === document.activeElement && el !== document.body) props.focused = 'true';
    return props;
  }
  function shapeProps(el, style) {
    const box = el.getBoundingClientRect(), props = {};
    const fill = el.getAttribute('fill') || (style.fill !== 'rgb(0, 0, 0)' ? style.fill : '');
    if (fill) props.fill = fill;
    props.size = Math.round(box.width) + 'x' + Math.round(box.height);
    props.at = Math.round(box.x) + ',' + Math.round(box.y);
    return props;
  }
  function boxProps(el, style) {
    const props = {};
    if (style.backgroundColor !== 'rgba(0, 0, 0, 0)') props.color = style.backgroundColor.replace(/\s/g, '');
    const kind = clean(typeof el.className === 'string' ? el.className : '');
    if (kind) props.class = kind;
    return props;
  }
  // A tree of {el, role, name, props, kids}; elements that say nothing pass their children on.
  function walk(el, out) {
    if (el.nodeType === Node.TEXT_NODE) {
      const words = clean(el.data), label = words && el.parentElement.closest('label');
      const said = label && label.control && isShown(label.control) && clean(label.control.computedName).includes(words);
      if (words && !said) out.push({ el: null, role: 'text', name: words, props: {}, kids: [] });  // no element of its own
      return;
    }
    if (el.nodeType !== Node.ELEMENT_NODE || ['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD'].includes(el.tagName)) return;
    if (el.id === 'sync-task-cover' || el.id === 'click-canvas' || el.id === 'reward-display') return;
    if (!(el instanceof HTMLOptionElement) && !isShown(el)) return;
    const style = getComputedStyle(el), tag = el.tagName.toLowerCase();
    if (el.id === 'query' && globalThis.terrellaTaskQuery) { out.push({ el, role: 'task', name: clean(el.innerText), props: {}, kids: [] }); return; }
    if (el.namespaceURI === 'http://www.w3.org/2000/svg' && SHAPES.has(tag)) {
      const box = el.getBoundingClientRect(), words = clean(el.textContent);
      if (words || box.width >= 2 || box.height >= 2)
        out.push({ el, role: tag === 'text' ? 'label' : tag, name: words, props: shapeProps(el, style), kids: [] });
      return;
    }
    let role = el.computedRole || '';
    const name = clean(el.computedName);
    if (el instanceof HTMLInputElement && el.type === 'password') role = 'textbox';
    if (el instanceof HTMLInputElement && ['date', 'time', 'datetime-local', 'month', 'week'].includes(el.type)) role = 'textbox';
    const isControl = CONTROLS.has(role), pointer = isPointer(el, style);
    const kids = [];
    if (!(role === 'textbox' || role === 'searchbox' || role === 'slider' || role === 'spinbutton'))
      for (const kid of (el.shadowRoot || el).childNodes) walk(kid, kids);
    if (PASS.has(role) && !pointer) {
      if (!kids.length && !el.childElementCount && el.getBoundingClientRect().width >= 6 && el.getBoundingClientRect().height >= 6) {
        const props = boxProps(el, style);
        if (tag !== 'br' && (props.color || props.class) && tag !== 'label') out.push({ el, role: 'box', name: clean(el.title), props, kids: [] });
      } else if (kids.length && kids.every(k => k.role === 'text')) {
        out.push({ el, role: 'text', name: clean(kids.map(k => k.name).join(' ')), props: {}, kids: [] });
      } else out.push(...kids);
      return;
    }
    if (isControl || (pointer && PASS.has(role))) {
      const label = name || clean(kids.filter(k => k.role === 'text').map(k => k.name).join(' '));
      let below = kids.filter(k => k.role !== 'text' && !(k.role === 'image' && !k.name) && k.role !== 'box');
      if (!isControl && !label && below.length) { out.push(...kids); return; }  // a click on what is inside comes here anyway
      if (below.length === 1 && below[0].name === label && !below[0].kids.length && ['link', 'text'].includes(below[0].role)) below = [];
      const props = describe(el, role, style);
      if (!label && !below.length && PASS.has(role)) Object.assign(props, boxProps(el, style));
      out.push({ el, role: PASS.has(role) ? 'clickable' : role, name: label, props, kids: below });
      return;
    }
    if (kids.length === 1 && kids[0].role === 'text' && !['row', 'list', 'table', 'form', 'main', 'navigation'].includes(role)) {
      out.push({ el, role, name: kids[0].name, props: describe(el, role, style), kids: [] });
    } else if (kids.length === 1 && !name) out.push(kids[0]);
    else if (kids.length || name) out.push({ el, role, name: kids.some(k => k.role === 'text' && name.includes(k.name)) ? '' : name, props: describe(el, role, style), kids });
  }
  globalThis.terrella = {
    tree(selector, query) {
      globalThis.terrellaTaskQuery = query;
      const root = document.querySelector(selector) || document.body, out = [];
      if (root) for (const kid of root.childNodes) walk(kid, out);
      const rows = [];
      const list = (node, depth) => { rows.push([depth, node.el ? idOf(node.el) : 0, node.role, node.name, node.props]); node.kids.forEach(k => list(k, depth + 1)); };
      out.forEach(node => list(node, 0));
      return rows;
    },
    forget() { known.clear(); ids = new WeakMap(); next = 1; },
    find(id) { const ref = known.get(id), el = ref && ref.deref(); return el && el.isConnected ? el : null; },
    place(id) {
      const el = this.find(id);
      if (!el) return null;
      let box = el.getBoundingClientRect();
      if (box.top < 0 || box.left < 0 || box.bottom > innerHeight || box.right > innerWidth) {
        el.scrollIntoView({ block: 'center', inline: 'center', behavior: 'instant' });
      }
      const rects = el.getClientRects();
      box = rects.length ? rects[0] : el.getBoundingClientRect();
      return [box.x + box.width / 2, box.y + box.height / 2];
    },
    focusText(id) {
      const el = this.find(id);
      if (!el) return null;
      el.focus();
      if (el.select) el.select();
      else if (el.isContentEditable) getSelection().selectAllChildren(el);
      return Boolean(el.value || el.textContent);
    },
    choose(id, label) {
      let el = this.find(id);
      if (el instanceof HTMLOptionElement) { label = el.text; el = el.closest('select'); }
      if (!(el instanceof HTMLSelectElement)) return false;
      const option = [...el.options].find(o => clean(o.text) === clean(label));
      if (!option) return false;
      if (el.multiple) option.selected = !option.selected; else el.value = option.value, option.selected = true;
      el.dispatchEvent(new Event('input', { bubbles: true }));
      el.dispatchEvent(new Event('change', { bubbles: true }));
      return true;
    },
    scroll(id, pixels) {
      let el = id ? this.find(id) : null;
      while (el && el.scrollHeight <= el.clientHeight) el = el.parentElement;
      if (!el) el = document.scrollingElement;
      const before = el.scrollTop;
      el.scrollBy({ top: pixels, behavior: 'instant' });
      return el.scrollTop !== before;
    },
  };
})();
