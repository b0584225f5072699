"""Videos: the frames of an episode as one array, and video and image files.

video = video_of(episode)    # uint8, (T + 1, H, W, 3)
write_video(Path("x.mp4"), video, fps=10)
read_video(Path("x.mp4"))
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import MissingExtraError, StoreError
from terrella.core.types import Episode, Frames, Observation
from terrella.core.untrusted import reading

FrameArray = NDArray[np.uint8]
MAX_PIXELS = 2**24
"""Pixels of one image, 4096 x 4096."""
MAX_VIDEO_BYTES = 2**31
"""Decoded frames of one episode."""
CONTAINERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi"
NEAREST = 0.5
"""Frames by which a frame's time may miss a boundary.

Both are rounded, and the errors of recordings that were joined in one file add up.
"""
ROUNDED = 1e-4
"""The same in seconds, for a stream that does not say how many frames a second has."""
PNG = b"\x89PNG\r\n\x1a\n"
PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")


def last_frame(observation: Observation) -> FrameArray:
    """The last frame of an observation (H, W, 3)."""
    if not isinstance(observation, Frames):
        raise StoreError("video", f"an observation is {observation.kind}, not frames")
    last: FrameArray = observation.array[-1]
    return last


def video_of(episode: Episode) -> FrameArray:
    """The frames of an episode, from the first to the last."""
    observations = [episode.first, *(step.next_observation for step in episode.transitions)]
    return np.stack([last_frame(observation) for observation in observations])


def av_module() -> Any:
    """Import PyAV; MissingExtraError says how to install it."""
    if importlib.util.find_spec("av") is None:
        raise MissingExtraError("video", "video files")
    import av

    return av


def write_video(
    path: Path, video: FrameArray, *, fps: int = 10, codec: str = "libx264", quality: int = 18
) -> None:
    """Write frames to a video file; H.264 needs even height and width.

    `quality` is the CRF: lower numbers lose less, 0 is lossless in luma.
    """
    av = av_module()
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options={"crf": str(quality)})
        stream.height = video.shape[1]
        stream.width = video.shape[2]
        stream.pix_fmt = "yuv444p"
        for image in video:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            for packet in stream.encode(frame):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def read_video(
    path: Path, start: float = 0.0, end: float = float("inf"), size: tuple[int, int] | None = None
) -> FrameArray:
    """Read the frames with a time (in seconds) in [start, end), resized to `size` if given.

    The first is the frame nearest to `start`. `size` is (height, width). Only the frames from the
    last key frame before `start` on are decoded: many recordings share a file.
    """
    av = av_module()
    # An absolute path is never taken for an address, and only containers of video are tried: a
    # playlist would make FFmpeg open other files.
    options = {"protocol_whitelist": "file", "format_whitelist": CONTAINERS}
    with _as_store_error(str(path)), av.open(str(path.resolve()), options=options) as container:
        stream = container.streams.video[0]
        stream.codec_context.options = {"max_pixels": str(MAX_PIXELS)}
        rate = stream.average_rate
        slack = NEAREST / float(rate) if rate else ROUNDED
        frames = _frames_from(container, stream, start + slack)
        selected = _frames_between(frames, start - slack, end - slack, size)
        return stack_frames(selected, f"{path} between {start:g} s and {end:g} s")


def _frames_from(container: Any, stream: Any, start: float) -> Iterator[Any]:
    """Decoded frames from a key frame before `start` on.

    Containers are sought by the order in which frames are stored. Where that is not the order of
    their times, the key frame that is found may come after `start`: then an earlier one is sought.
    """
    back = 0.0
    while start > back:
        container.seek(int((start - back) / stream.time_base), stream=stream, backward=True)
        frames = container.decode(stream)
        # Frames before the key frame may need others that were not read.
        key = next((frame for frame in frames if frame.key_frame), None)
        if key is not None and _time(key) < start:
            return itertools.chain([key], frames)
        back = 2 * back + 1.0
    container.seek(0)
    return iter(container.decode(stream))


def _time(frame: Any) -> float:
    """Seconds from the beginning of the video."""
    return float(frame.pts * frame.time_base)


def _frames_between(
    frames: Iterable[Any], start: float, end: float, size: tuple[int, int] | None
) -> Iterator[FrameArray]:
    for frame in frames:
        time = _time(frame)
        if time >= end:  # frames come in the order of their times
            return
        if time >= start:
            height, width = size or (frame.height, frame.width)
            yield frame.reformat(width, height).to_ndarray(format="rgb24")


def stack_frames(frames: Iterable[FrameArray], where: str = "video") -> FrameArray:
    """Frames of equal size as one array of bounded size."""
    stacked: list[FrameArray] = []
    size = 0
    for frame in frames:
        size += frame.nbytes
        if size > MAX_VIDEO_BYTES:
            raise StoreError(
                where, f"is larger than {MAX_VIDEO_BYTES:,} bytes", "read it with a smaller size"
            )
        stacked.append(frame)
    if not stacked:
        raise StoreError(where, "has no frame")
    return np.stack(stacked)


@contextlib.contextmanager
def _as_store_error(where: str) -> Iterator[None]:
    with reading(where):
        try:
            yield
        except av_module().FFmpegError as error:  # some of them are no ValueError and no OSError
            raise ValueError(str(error)) from error


def decode_image(data: bytes) -> FrameArray:
    """Decode a JPEG or PNG to (H, W, 3); its size is checked before its pixels are decoded."""
    av = av_module()
    is_png = data.startswith(PNG)
    kind = "png" if is_png else "mjpeg"
    with _as_store_error(f"{kind} image of {len(data):,} bytes"):
        decoder = av.CodecContext.create(kind, "r")
        decoder.options = {"max_pixels": str(MAX_PIXELS)}
        packet = av.Packet(_only_pixels(data) if is_png else data)
        frames = [*decoder.decode(packet), *decoder.decode(None)]
        if len(frames) != 1:
            raise ValueError(f"it holds {len(frames)} images")
        image: FrameArray = frames[0].to_ndarray(format="rgb24")
    return image


def _only_pixels(data: bytes) -> bytes:
    """A PNG without its texts and profiles: compressed, they may be larger than any picture."""
    kept = [PNG]
    position = len(PNG)
    while position < len(data):
        length = int.from_bytes(data[position : position + 4], "big")
        if data[position + 4 : position + 8] in PIXEL_CHUNKS:
            kept.append(data[position : position + length + 12])
        position += length + 12
    return b"".join(kept)


def resize(image: FrameArray, size: tuple[int, int]) -> FrameArray:
    """Resize an image (H, W, 3) to `size`, which is (height, width)."""
    frame = av_module().VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    height, width = size
    frame = frame.reformat(width, height, interpolation="AREA")
    resized: FrameArray = frame.to_ndarray(format="rgb24")
    return resized
