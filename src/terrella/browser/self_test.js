// Tries ways past the guard: UDP through WebRTC, TCP through whatever loads an address.
// Resolves when all have ended, or after `milliseconds`.
(async (udp, tcp, milliseconds) => {
  const tries = [];
  const wait = (time) => new Promise((done) => setTimeout(done, time));
  const settled = (target, ...names) =>
    tries.push(new Promise((done) => names.forEach((name) => (target[name] = done))));
  const out = `http://127.0.0.1:${tcp}/`;

  const peer = new RTCPeerConnection({
    iceServers: [
      { urls: `stun:127.0.0.1:${udp}` },
      { urls: `turn:127.0.0.1:${udp}`, username: "a", credential: "b" },
      { urls: `turn:127.0.0.1:${tcp}?transport=tcp`, username: "a", credential: "b" },
    ],
  });
  const other = new RTCPeerConnection();
  tries.push(new Promise((done) => (peer.onicecandidate = (event) => event.candidate || done())));
  peer.createDataChannel("out");
  await peer.setLocalDescription(await peer.createOffer());
  await other.setRemoteDescription(peer.localDescription);
  await other.setLocalDescription(await other.createAnswer());
  await peer.setRemoteDescription(other.localDescription);
  for (const [kind, port, rest] of [["udp", udp, ""], ["tcp", tcp, " tcptype passive"]])
    await peer.addIceCandidate({
      candidate: `candidate:1 1 ${kind} 2113937151 127.0.0.1 ${port} typ host${rest}`,
      sdpMid: "0",
    });

  tries.push(fetch(out + "fetch", { mode: "no-cors" }).catch(() => 0));
  settled(new WebSocket(`ws://127.0.0.1:${tcp}/`), "onerror", "onopen");
  settled(new EventSource(out + "events"), "onerror", "onopen");
  const image = new Image();
  settled(image, "onerror", "onload");
  image.src = out + "image";
  for (const rel of ["prefetch", "preconnect", "stylesheet"]) {
    const link = document.head.appendChild(document.createElement("link"));
    link.rel = rel;
    link.href = out + rel;
  }
  navigator.sendBeacon(out + "beacon", "x");
  await Promise.race([Promise.all(tries), wait(milliseconds)]);
  await wait(50);
  peer.close();
  other.close();
})
