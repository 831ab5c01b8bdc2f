// Which result of a search stands first: pages whose title begins with the words, then other
// pages, then the functions of the reference.
var Scorer = {
  score: ([page, title, anchor, , score]) => {
    const asked = (new URLSearchParams(location.search).get('q') || '').trim().toLowerCase();
    const begins = !anchor && asked && title.toLowerCase().startsWith(asked);
    return score + (begins ? 100 : 0) - (page.startsWith('api/') ? 30 : 0);
  },
  objNameMatch: 11, objPartialMatch: 6,
  objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
