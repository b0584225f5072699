// Video: the frames side by side; compared with other frames, each has the absolute difference below it.
import { el } from "../dom";
import type { FramesSeen } from "../data";

function picture(source: string, label: string): HTMLImageElement {
  return el("img", { src: source, alt: label, class: "frame" });
}

async function difference(canvas: HTMLCanvasElement, first: string, second: string): Promise<void> {
  const images = await Promise.all([first, second].map(async (source) => {
    const image = new Image();
    image.src = source;
    await image.decode();
    return image;
  }));
  const { naturalWidth: width, naturalHeight: height } = images[0]!;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true })!;
  const [a, b] = images.map((image) => {
    context.drawImage(image, 0, 0);
    return context.getImageData(0, 0, width, height).data;
  });
  const shown = context.createImageData(width, height);
  let sum = 0;
  for (let i = 0; i < a!.length; i += 4) {
    for (let c = 0; c < 3; c++) sum += shown.data[i + c] = Math.abs(a![i + c]! - b![i + c]!);
    shown.data[i + 3] = 255;
  }
  context.putImageData(shown, 0, 0);
  canvas.title = `mean difference ${(sum / (width * height * 3)).toFixed(2)} of 255`;
}

export const frames = {
  draw(seen: FramesSeen, other?: FramesSeen) {
    let differences = 0;
    const columns = seen.images.map((image, n) => {
      const column = el("div", { class: "film" }, picture(image, `frame ${n + 1}`));
      const beside = other?.images[n];
      if (beside !== undefined && beside !== image) {
        differences++;
        const canvas = el("canvas", { class: "frame difference", "aria-label": `difference of frame ${n + 1}` });
        void difference(canvas, image, beside);
        column.append(canvas);
      }
      return column;
    });
    return { node: el("div", { class: "frames" }, ...columns), differences };
  },
};
