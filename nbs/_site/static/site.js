// Fields above tables and lists of the class `filterable`, and the figure of the class `faders`.
// Without JavaScript the same tables and lists are there in full.

const CHOICES = ['family', 'status', 'verdict'];
const STYLE = {search: 'search', range: 'range'};

function element(name, parts = {}, ...children) {
  const made = Object.assign(document.createElement(name), parts);
  made.append(...children);
  return made;
}

function labelled(text, control) {
  return element('label', {}, text, control);
}

// What a cell counts as: its words up to a colon, or several that commas divide.
function sorts(text) {
  return text.split(':')[0].split(',').map(word => word.trim()).filter(Boolean);
}

function choiceOf(column, place, rows) {
  const found = rows.flatMap(row => sorts(row.cells[place].textContent));
  const names = ['all', ...[...new Set(found)].sort()];
  const options = names.map(name => element('option', {value: name}, name));
  const control = element('select', {}, ...options);
  const fits = row => control.value === 'all' ||
    sorts(row.cells[place].textContent).includes(control.value);
  return {control: labelled(column, control), fits};
}

function wordsOf() {
  const control = element('input', {type: STYLE.search, placeholder: 'words'});
  const fits = row => {
    const text = row.textContent.toLowerCase();
    return control.value.toLowerCase().split(/\s+/).every(word => text.includes(word));
  };
  return {control: labelled('search', control), fits};
}

function columnsOf(table) {
  return table ? [...table.querySelectorAll('thead th')].map(cell => cell.textContent.trim()) : [];
}

function nameCells(rows, columns) {
  for (const row of rows) {
    [...row.cells].forEach((cell, place) => {
      cell.dataset.column = columns[place];
      cell.classList.toggle('empty', !cell.textContent.trim());
    });
  }
}

function makeFilterable(box) {
  const table = box.querySelector('table');
  const rows = [...box.querySelectorAll(table ? 'tbody tr' : '.recipe')];
  const columns = columnsOf(table);
  if (table) nameCells(rows, columns);
  const chosen = CHOICES.filter(column => columns.includes(column));
  const filters = [wordsOf(), ...chosen.map(c => choiceOf(c, columns.indexOf(c), rows))];
  const count = element('output', {ariaLive: 'polite'});
  const update = () => {
    rows.forEach(row => { row.hidden = !filters.every(filter => filter.fits(row)); });
    count.textContent = `${rows.filter(row => !row.hidden).length} of ${rows.length}`;
  };
  const controls = filters.map(filter => filter.control);
  box.before(element('div', {className: 'controls', oninput: update}, ...controls, count));
  update();
}

// `text`: "+0.50 / -0.50", what a right and a wrong answer get.
function bar(text, sort, largest) {
  const value = parseFloat(text.replace('−', '-'));
  const number = element('span', {className: value < 0 ? '' : 'left'}, text);
  const made = element('div', {className: `bar ${sort}`}, number);
  if (Number.isNaN(value)) return made;
  const width = 50 * Math.abs(value) / largest;
  const fill = element('i');
  fill.style.width = `${width}%`;
  fill.style.left = `${value < 0 ? 50 - width : 50}%`;
  made.prepend(fill);
  return made;
}

function makeFaders(box) {
  const table = box.querySelector('table');
  const names = columnsOf(table).slice(1);
  const rows = [...table.querySelectorAll('tbody tr')].map(row =>
    [...row.cells].slice(1).map(cell => cell.textContent.split(' / ')));
  const values = rows.flat(2).map(text => Math.abs(parseFloat(text.replace('−', '-'))));
  const largest = Math.max(...values.filter(value => !Number.isNaN(value)));
  const slider = element('input', {type: STYLE.range, min: 0, max: rows.length - 1, value: 2});
  const count = element('output', {ariaLive: 'polite'});
  const bars = element('div', {className: 'bars'});
  const update = () => {
    count.textContent = `${slider.value} of ${rows.length - 1} are right`;
    const heads = ['', 'a right answer gets', 'a wrong answer gets'];
    const lines = names.flatMap((name, i) => [element('code', {}, name),
      ...rows[slider.value][i].map((text, j) => bar(text.trim(), j ? 'wrong' : 'right', largest))]);
    bars.replaceChildren(...heads.map(head => element('small', {}, head)), ...lines);
  };
  const control = labelled('right answers', slider);
  box.before(element('div', {className: 'controls', oninput: update}, control, count), bars);
  const all = element('details', {}, element('summary', {}, 'All numbers as a table'));
  box.before(all);
  all.append(box);
  update();
}

document.addEventListener('DOMContentLoaded', () => {
  document.querySelectorAll('.filterable').forEach(makeFilterable);
  document.querySelectorAll('.faders').forEach(makeFaders);
});
