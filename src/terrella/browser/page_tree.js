// Computes a page's accessibility tree. It runs in an isolated world: it sees the page's DOM but
// shares no JavaScript with it, so that a page cannot change what is reported. Roles and names are
// Chromium's own accessibility computation.
(() => {
  if (globalThis.terrella) return;
  const elements = new Map();
  let ids = new WeakMap(), nextId = 1;
  const SVG = 'http://www.w3.org/2000/svg';
  const SHAPES = new Set([
    'circle', 'rect', 'polygon', 'path', 'ellipse', 'line', 'text', 'image',
  ]);
  // Roles that say nothing by themselves: such elements pass their children on.
  const TRANSPARENT = new Set([
    '', 'generic', 'none', 'presentation', 'paragraph', 'rowgroup', 'LabelText', 'emphasis',
    'strong', 'subscript', 'superscript', 'code', 'time', 'mark', 'insertion', 'deletion',
    'blockquote', 'LineBreak', 'status',
  ]);
  const CONTROLS = new Set([
    'button', 'link', 'textbox', 'searchbox', 'combobox', 'listbox', 'checkbox', 'radio', 'tab',
    'menuitem', 'option', 'slider', 'spinbutton', 'switch', 'treeitem', 'image',
    'menuitemcheckbox', 'menuitemradio',
  ]);
  const CHILDLESS = new Set(['textbox', 'searchbox', 'slider', 'spinbutton']);
  const CONTAINERS = new Set(['row', 'list', 'table', 'form', 'main', 'navigation']);
  const SKIPPED_TAGS = new Set(['SCRIPT', 'STYLE', 'NOSCRIPT', 'TEMPLATE', 'HEAD']);
  const SKIPPED_IDS = new Set(['sync-task-cover', 'click-canvas', 'reward-display']);  // MiniWoB++
  const BUTTON_TYPES = ['submit', 'button', 'image', 'reset'];
  const DATE_TYPES = ['date', 'time', 'datetime-local', 'month', 'week'];
  const clean = text => (text || '').replace(/\s+/g, ' ').trim();
  const classOf = el => (typeof el.className === 'string' ? el.className : '');
  const isText = node => node.role === 'text';
  const joinedText = nodes => clean(nodes.filter(isText).map(node => node.name).join(' '));

  function idOf(el) {
    if (!ids.has(el)) {
      ids.set(el, nextId);
      elements.set(nextId, new WeakRef(el));
      nextId += 1;
    }
    return ids.get(el);
  }

  function isShown(el) {
    return el.checkVisibility ? el.checkVisibility({ visibilityProperty: true }) : true;
  }

  function isClickable(el, style) {
    if (el.hasAttribute('onclick') || el.hasAttribute('data-terrella-listens')) return true;
    if (style.cursor !== 'pointer') return false;
    // The cursor is inherited: only the element where it begins counts.
    return !el.parentElement || getComputedStyle(el.parentElement).cursor !== 'pointer';
  }

  function fieldProps(el) {
    const props = {}, type = el.type;
    if (type === 'checkbox' || type === 'radio') {
      if (el.checked) props.checked = 'true';
    } else if (type === 'password') {
      if (el.value) props.value = '*'.repeat(el.value.length);
    } else if (el instanceof HTMLSelectElement) {
      props.value = clean(el.selectedOptions[0] && el.selectedOptions[0].text);
    } else if (![...BUTTON_TYPES, 'file'].includes(type) && el.value) {
      props.value = el.value;  // verbatim, spaces included
    }
    if (el instanceof HTMLTextAreaElement) props.multiline = 'true';
    if (el.disabled) props.disabled = 'true';
    if (el.readOnly) props.readonly = 'true';
    if (![...BUTTON_TYPES, 'checkbox', 'radio'].includes(type) && el.placeholder) {
      props.placeholder = clean(el.placeholder);
    }
    return props;
  }

  function isField(el) {
    return el instanceof HTMLInputElement || el instanceof HTMLTextAreaElement
      || el instanceof HTMLSelectElement;
  }

  function stateProps(el) {
    const props = isField(el) ? fieldProps(el) : (el.disabled ? { disabled: 'true' } : {});
    for (const state of ['checked', 'selected', 'expanded', 'pressed', 'valuenow']) {
      const value = el.getAttribute('aria-' + state);
      if (value && value !== 'false') props[state] = value;
    }
    if (el instanceof HTMLOptionElement && el.selected) props.selected = 'true';
    const looksSelected = /(^|[\s-])(selected|active|checked)(\s|$)/.test(classOf(el));
    if (!props.selected && looksSelected && !(el instanceof HTMLInputElement)) {
      props.selected = 'true';
    }
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
    if (style.backgroundColor !== 'rgba(0, 0, 0, 0)') {
      props.color = style.backgroundColor.replace(/\s/g, '');
    }
    const names = clean(classOf(el));
    if (names) props.class = names;
    return props;
  }

  function walkText(node, out) {
    const text = clean(node.data), label = text && node.parentElement.closest('label');
    // The text of a label is already part of its control's name.
    const isNamed = label && label.control && isShown(label.control)
      && clean(label.control.computedName).includes(text);
    if (text && !isNamed) out.push({ el: null, role: 'text', name: text, props: {}, children: [] });
  }

  function walkShape(el, tag, style, out) {
    const box = el.getBoundingClientRect(), name = clean(el.textContent);
    if (!name && box.width < 2 && box.height < 2) return;
    const role = tag === 'text' ? 'label' : tag;
    out.push({ el, role, name, props: shapeProps(el, style), children: [] });
  }

  function isEmptyBox(el, children) {
    if (children.length || el.childElementCount) return false;
    const box = el.getBoundingClientRect();
    return box.width >= 6 && box.height >= 6;
  }

  function walkTransparent(el, tag, style, children, out) {
    if (isEmptyBox(el, children)) {
      const props = boxProps(el, style);
      if (tag !== 'br' && tag !== 'label' && (props.color || props.class)) {
        out.push({ el, role: 'box', name: clean(el.title), props, children: [] });
      }
    } else if (children.length && children.every(isText)) {
      out.push({ el, role: 'text', name: joinedText(children), props: {}, children: [] });
    } else {
      out.push(...children);
    }
  }

  function walkControl(el, role, name, style, children, out) {
    const isTransparent = TRANSPARENT.has(role), label = name || joinedText(children);
    let inner = children.filter(
      node => !isText(node) && !(node.role === 'image' && !node.name) && node.role !== 'box',
    );
    // A click on an inner control reaches this element as well.
    if (!CONTROLS.has(role) && !label && inner.length) {
      out.push(...children);
      return;
    }
    const repeatsLabel = inner.length === 1 && inner[0].name === label
      && !inner[0].children.length && ['link', 'text'].includes(inner[0].role);
    if (repeatsLabel) inner = [];
    const props = stateProps(el);
    if (!label && !inner.length && isTransparent) Object.assign(props, boxProps(el, style));
    out.push({ el, role: isTransparent ? 'clickable' : role, name: label, props, children: inner });
  }

  function walkStructure(el, role, name, children, out) {
    const only = children.length === 1 ? children[0] : null;
    if (only && isText(only) && !CONTAINERS.has(role)) {
      out.push({ el, role, name: only.name, props: stateProps(el), children: [] });
    } else if (only && !name) {
      out.push(only);
    } else if (children.length || name) {
      const isRepeated = children.some(node => isText(node) && name.includes(node.name));
      out.push({ el, role, name: isRepeated ? '' : name, props: stateProps(el), children });
    }
  }

  function roleOf(el) {
    const isInput = el instanceof HTMLInputElement;
    if (isInput && (el.type === 'password' || DATE_TYPES.includes(el.type))) return 'textbox';
    return el.computedRole || '';
  }

  // Appends the nodes {el, role, name, props, children} of an element to `out`.
  function walk(el, out) {
    if (el.nodeType === Node.TEXT_NODE) {
      walkText(el, out);
      return;
    }
    if (el.nodeType !== Node.ELEMENT_NODE || SKIPPED_TAGS.has(el.tagName)) return;
    if (SKIPPED_IDS.has(el.id)) return;
    if (!(el instanceof HTMLOptionElement) && !isShown(el)) return;
    const style = getComputedStyle(el), tag = el.tagName.toLowerCase();
    if (el.id === 'query' && globalThis.terrellaTaskQuery) {
      out.push({ el, role: 'task', name: clean(el.innerText), props: {}, children: [] });
      return;
    }
    if (el.namespaceURI === SVG && SHAPES.has(tag)) {
      walkShape(el, tag, style, out);
      return;
    }
    const role = roleOf(el), name = clean(el.computedName);
    const isControl = CONTROLS.has(role), clickable = isClickable(el, style);
    const children = [];
    if (!CHILDLESS.has(role)) {
      for (const child of (el.shadowRoot || el).childNodes) walk(child, children);
    }
    if (TRANSPARENT.has(role) && !clickable) walkTransparent(el, tag, style, children, out);
    else if (isControl || TRANSPARENT.has(role)) walkControl(el, role, name, style, children, out);
    else walkStructure(el, role, name, children, out);
  }

  globalThis.terrella = {
    // Rows of [depth, id, role, name, props] in preorder.
    tree(selector, taskQuery) {
      globalThis.terrellaTaskQuery = taskQuery;
      const root = document.querySelector(selector) || document.body, nodes = [], rows = [];
      if (root) for (const child of root.childNodes) walk(child, nodes);
      const list = (node, depth) => {
        rows.push([depth, node.el ? idOf(node.el) : 0, node.role, node.name, node.props]);
        node.children.forEach(child => list(child, depth + 1));
      };
      nodes.forEach(node => list(node, 0));
      return rows;
    },
    forget() {
      elements.clear();
      ids = new WeakMap();
      nextId = 1;
    },
    find(id) {
      const ref = elements.get(id), el = ref && ref.deref();
      return el && el.isConnected ? el : null;
    },
    // The middle of an element, scrolled into view; null when it is gone.
    center(id) {
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
    // Whether the focused field had content, now selected; null when the element is gone.
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
      if (el instanceof HTMLOptionElement) {
        label = el.text;
        el = el.closest('select');
      }
      if (!(el instanceof HTMLSelectElement)) return false;
      const option = [...el.options].find(candidate => clean(candidate.text) === clean(label));
      if (!option) return false;
      if (el.multiple) {
        option.selected = !option.selected;
      } else {
        el.value = option.value;
        option.selected = true;
      }
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
