/* Rollouts are parts of the page itself: deflated JSON. */

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(stream).text());
}

class PageSource {
  constructor(run) {
    this.text = document.getElementById(`shelf-${run}`).textContent;
    const table = JSON.parse(document.getElementById(`table-${run}`).textContent);
    this.where = { index: table.index, groups: new Map(), problems: new Map() };
    for (const [step, group, start, length] of table.groups) this.where.groups.set(`${step}/${group}`, [start, length]);
    for (const [number, start, length] of table.problems) this.where.problems.set(number, [start, length]);
  }
  part(place) {
    if (!place) return Promise.resolve(null);
    const [start, length] = place;
    const raw = atob(this.text.slice(start, start + Math.ceil(length / 3) * 4));
    const bytes = new Uint8Array(length);
    for (let at = 0; at < length; at++) bytes[at] = raw.charCodeAt(at);
    return inflate(bytes);
  }
  index() { return this.part(this.where.index); }
  group(step, group) { return this.part(this.where.groups.get(`${step}/${group}`)); }
  problem(n) { return this.part(this.where.problems.get(n)); }
}
