(async () => {
  const text = id => document.getElementById(id).textContent;
  const bytes = Uint8Array.from(atob(text('plotly')), letter => letter.charCodeAt(0));
  const unpacked = new Blob([bytes]).stream().pipeThrough(new DecompressionStream('gzip'));
  const script = document.createElement('script');
  script.textContent = await new Response(unpacked).text();
  document.head.append(script);
  const options = { responsive: true, displaylogo: false };
  for (const [place, figure] of JSON.parse(text('figures')).entries()) {
    await Plotly.newPlot(`figure-${place}`, figure.data, figure.layout, options);
  }
})();
