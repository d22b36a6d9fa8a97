/* Follows clock.js in one module. Without a script the page says its times in UTC. */
for (const time of document.querySelectorAll('time')) {
  const utc = Date.parse(time.dateTime);
  const text = localTimeText(utc, utcOffsetMs(utc)).replace('T', ' ');
  const zone = time.textContent.endsWith('UTC') ? ` ${zoneName(utc)}` : '';
  time.textContent = text.slice(0, time.textContent.replace(' UTC', '').length) + zone;
  time.title = time.dateTime;
}
for (const zone of document.querySelectorAll('.zone')) {
  const first = document.querySelector('#events time');
  zone.textContent = zoneName(first ? Date.parse(first.dateTime) : Date.now());
}
(async () => {
  const text = id => document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text('plotly')), letter => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  const options = { responsive: true, displaylogo: false };
  for (const [place, given] of JSON.parse(text('figures')).entries()) {
    const figure = localTimeFigure(given);
    await Plotly.newPlot(`figure-${place}`, figure.data, figure.layout, options);
  }
  // Plots as wide as the window would make the browser shrink the whole page until they fit the paper.
  const paper = 660;
  const size = layout => {
    for (const plot of document.querySelectorAll('.plot')) Plotly.relayout(plot, layout);
  };
  addEventListener('beforeprint', () => size({ width: paper }));
  addEventListener('afterprint', () => size({ width: null, autosize: true }));
})();
