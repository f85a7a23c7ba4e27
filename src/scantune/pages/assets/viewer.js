"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const root = document.documentElement;
  const data = JSON.parse(find("data").textContent);
  const axes = { axial: 2, coronal: 1, sagittal: 0 };
  const choices = [...document.querySelectorAll('input[name="show"]')];
  const chips = [...document.querySelectorAll(".chip")];
  const canvas = find("canvas");
  const section = document.querySelector(".viewer");
  const stills = document.querySelector(".stills");

  // Leave the pictures, with a sentence that says why the viewer does not run.
  function giveUp(sentence) {
    section.hidden = true;
    stills.classList.remove("standby");
    find("why").textContent = sentence + " These are pictures of a few slices.";
    root.dataset.viewer = "none";
  }

  async function unpack(id) {
    const text = atob(find(id).textContent);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    find(id).remove();
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).arrayBuffer();
  }

  const rgb = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));

  // Return the colours of all codes for the chosen view.
  function colourTable() {
    const shown = choices.find((choice) => choice.checked).value;
    const hidden = new Set(chips.filter((c) => c.getAttribute("aria-pressed") === "false").map((c) => c.dataset.structure));
    const map = data.maps.indexOf(shown);
    const table = { R: [], G: [], B: [], A: [], I: [], labels: [] };
    (data.tables[shown] || data.tables.After).forEach((colour, code) => {
      const clear = !colour || (map >= 0 && hidden.has(data.names[code][map]));
      const [r, g, b] = clear ? [0, 0, 0] : rgb(colour);
      table.R.push(r); table.G.push(g); table.B.push(b); table.A.push(clear ? 0 : 255);
      table.I.push(code); table.labels.push("");
    });
    return table;
  }

  const opacity = () => (choices[0].checked ? 0 : find("opacity").value / 100);

  async function start() {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await unpack("niivue"));
    document.head.append(script);
    const { Niivue, NVImage } = window.niivue;
    const viewer = new Niivue({
      logLevel: "error", loadingText: "", isAntiAlias: false, dragAndDropEnabled: false, isRadiologicalConvention: true,
      sagittalNoseLeft: true, showAllOrientationMarkers: true, crosshairWidth: 0.4, crosshairGap: 8, crosshairColor: [1, 1, 1, 0.5],
      backColor: [0, 0, 0, 1], fontColor: [0.8, 0.8, 0.8, 1], fontMinPx: 14, fontSizeScaling: 0.2,
      isForceMouseClickToVoxelCenters: true, viewModeHotKey: "", clipPlaneHotKey: "", cycleClipPlaneHotKey: "",
      sliceType: axisType(find("plane").value),
    });
    function axisType(plane) { return { axial: 0, coronal: 1, sagittal: 2 }[plane]; }
    const axis = () => axes[find("plane").value];

    await viewer.attachToCanvas(canvas, false);
    const image = await NVImage.new(await unpack("image"), "image.nii", "gray", 1, null, 0, 255);
    const codes = await NVImage.new(await unpack("codes"), "codes.nii", "gray", opacity(), null, 0, 65535);
    codes.setColormapLabel(colourTable());
    viewer.volumes = [image]; // so that it is not drawn alone first
    viewer.addVolume(codes);

    const whole = codes.img.slice();

    // Keep the codes where the colour changes within the plane that is shown, and clear the inside.
    function outlined() {
      const shown = choices.find((choice) => choice.checked).value;
      const colours = data.tables[shown] || data.tables.After;
      const [nx, ny] = data.shape;
      const steps = [1, nx, nx * ny].filter((_, direction) => direction !== axis());
      return whole.map((code, at) => {
        const same = (other) => whole[other] === undefined || colours[whole[other]] === colours[code];
        return steps.every((step) => same(at - step) && same(at + step)) ? 0 : code;
      });
    }

    function draw() {
      const filled = !find("outlines").checked || choices.find((choice) => choice.checked).value === "Differences";
      codes.img.set(filled ? whole : outlined());
      paint();
    }

    function paint() {
      const differences = choices.find((choice) => choice.checked).value === "Differences";
      find("structures").hidden = differences;
      find("kinds").hidden = !differences;
      codes.setColormapLabel(colourTable());
      viewer.setOpacity(1, opacity());
    }

    function place(voxel) {
      viewer.scene.crosshairPos = viewer.vox2frac(voxel);
      viewer.drawScene();
      viewer.createOnLocationChange();
    }

    function toSlice(number) {
      const voxel = Array.from(viewer.frac2vox(viewer.scene.crosshairPos));
      voxel[axis()] = Math.min(Math.max(number, 0), data.shape[axis()] - 1);
      place(voxel);
    }

    // Show the labels of all maps at the crosshair.
    function describe(voxel) {
      const [nx, ny] = data.shape;
      const code = whole[voxel[0] + nx * (voxel[1] + ny * voxel[2])] || 0;
      const words = data.maps.map((map, i) => `${map.toLowerCase()} ${data.names[code][i] || "background"}`);
      find("pointed").textContent = `At the crosshair: ${words.join(", ")}.`;
    }

    function showPosition(voxel) {
      const slider = find("slice");
      slider.max = data.shape[axis()] - 1;
      slider.value = voxel[axis()];
      find("place").textContent = `${voxel[axis()] + 1} of ${data.shape[axis()]}`;
      describe(voxel);
    }

    viewer.onLocationChange = (location) => showPosition(location.vox.map(Math.round));
    const first = ["sagittal", "coronal", "axial"].map((plane) => data.slices[plane]);
    place(first);

    choices.forEach((choice) => choice.addEventListener("change", draw));
    find("opacity").addEventListener("input", paint);
    find("slice").addEventListener("input", (event) => toSlice(Number(event.target.value)));
    find("plane").addEventListener("change", () => {
      viewer.setSliceType(axisType(find("plane").value));
      draw();
      viewer.createOnLocationChange();
    });
    chips.forEach((chip) => chip.addEventListener("click", () => {
      chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") === "false"));
      paint();
    }));
    find("outlines").addEventListener("change", draw);
    find("crosshair").addEventListener("change", () => viewer.setCrosshairWidth(find("crosshair").checked ? 0.4 : 0));

    const switches = { o: "outlines", x: "crosshair" };
    // Keys work on the whole page, but in controls only those that the control itself does not use.
    function isMeant(event) {
      const { top, bottom } = section.getBoundingClientRect();
      const inView = bottom > 0 && top < window.innerHeight;
      return event.target === canvas || (inView && !event.target.closest("input, select, textarea, summary, button, a"));
    }
    document.addEventListener("keydown", (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const step = { ArrowUp: 1, ArrowRight: 1, PageUp: 1, ArrowDown: -1, ArrowLeft: -1, PageDown: -1 }[event.key];
      const choice = /^\d$/.test(event.key) ? choices[Number(event.key)] : undefined;
      if (choice) {
        choice.checked = true;
        draw();
      } else if (switches[event.key.toLowerCase()]) {
        find(switches[event.key.toLowerCase()]).click();
      } else if (step && isMeant(event)) {
        toSlice(Number(find("slice").value) + step);
      } else {
        // The viewer has many hidden keys of its own.
        if (event.target === canvas && event.key !== "Tab") event.stopPropagation();
        return;
      }
      event.preventDefault();
      event.stopPropagation();
    }, true);
  }

  // The list of scans gives a page its place in the list: the list itself, and the pages before and after.
  function showNeighbours() {
    let list = {};
    try { list = JSON.parse(decodeURIComponent(location.hash.slice(1) || "{}")); } catch { return; }
    const pages = Array.isArray(list.pages) ? list.pages : [];
    const here = Number(list.at);
    const targets = { back: [list.index, ""], previous: [pages[here - 1], here - 1], next: [pages[here + 1], here + 1] };
    for (const [id, [href, at]] of Object.entries(targets)) {
      find(id).hidden = true;
      // Only pages in the folder of this one, or of its list.
      if (typeof href !== "string" || !/^(\.\.\/)*[^:\\]+\.html$/.test(href) || href.startsWith("/")) continue;
      const link = find(id);
      link.href = id === "back" ? href : `${href}#${encodeURIComponent(JSON.stringify({ ...list, at }))}`;
      link.hidden = false;
    }
    find("neighbours").hidden = [...find("neighbours").children].every((link) => link.hidden);
  }
  showNeighbours();
  window.addEventListener("hashchange", showNeighbours);

  if (!window.DecompressionStream) return giveUp("This browser is too old for the viewer.");
  section.hidden = false;
  // The viewer asks for the same attributes, and gets this context.
  if (!canvas.getContext("webgl2", { alpha: true, antialias: false })) {
    return giveUp("This browser has no WebGL2, which the viewer needs.");
  }
  stills.classList.add("standby");
  // Let the browser draw the text before the viewer starts.
  requestAnimationFrame(() => setTimeout(() => start().then(
    () => {
      if (document.activeElement === document.body) canvas.focus({ preventScroll: true });
      root.dataset.viewer = "ready";
    },
    (error) => giveUp(`The viewer could not be started (${error.message || error}).`),
  )));
})();
