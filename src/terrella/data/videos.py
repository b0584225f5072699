"""Videos: the frames of an episode as one array, and video and image files.

video = video_of(episode)    # uint8, (T + 1, H, W, 3)
write_video(Path("x.mp4"), video, fps=10)
read_video(Path("x.mp4"))
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import MissingExtraError, StoreError
from terrella.core.types import Episode, Frames, Observation

FrameArray = NDArray[np.uint8]


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

    `size` is (height, width).
    """
    av = av_module()
    frames = []
    with av.open(str(path)) as container:
        for frame in container.decode(video=0):
            time = float(frame.pts * frame.time_base)
            if start - 1e-4 <= time < end - 1e-4:
                height, width = size or (frame.height, frame.width)
                frames.append(frame.reformat(width, height).to_ndarray(format="rgb24"))
    if not frames:
        raise StoreError(str(path), f"no frame between {start:g} s and {end:g} s")
    return np.stack(frames)


def decode_image(data: bytes) -> FrameArray:
    """Decode a JPEG or PNG to (H, W, 3)."""
    av = av_module()
    kind = "png" if data[:4] == b"\x89PNG" else "mjpeg"
    decoder = av.CodecContext.create(kind, "r")
    frames = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    if len(frames) != 1:
        raise StoreError("image", f"{len(data)} bytes are not one {kind} image")
    image: FrameArray = frames[0].to_ndarray(format="rgb24")
    return image


def resize(image: FrameArray, size: tuple[int, int]) -> FrameArray:
    """Resize an image (H, W, 3) to `size`, which is (height, width)."""
    frame = av_module().VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
    height, width = size
    frame = frame.reformat(width, height, interpolation="AREA")
    resized: FrameArray = frame.to_ndarray(format="rgb24")
    return resized
