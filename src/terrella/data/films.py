"""Films: the frames of an episode as one array, the stretches of it that a video model is asked about, video files.

film = film_of(episode)                    # (T + 1, H, W, 3) uint8
write_video(Path("x.mp4"), film, fps=10); read_video(Path("x.mp4"))
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from terrella.core.errors import MissingExtraError, StoreError
from terrella.core.types import Episode, Frames, Observation

Pictures = NDArray[np.uint8]


def picture_of(observation: Observation) -> Pictures:
    """The last frame of an observation (H, W, 3)."""
    if not isinstance(observation, Frames):
        raise StoreError("film", f"an observation is {observation.kind}, not frames")
    last: Pictures = observation.array[-1]
    return last


def film_of(episode: Episode) -> Pictures:
    """What was seen, from the first frame to the last."""
    return np.stack([picture_of(episode.first), *(picture_of(step.next_observation) for step in episode.transitions)])


def av_module() -> Any:
    """PyAV; the error says how to install it."""
    if importlib.util.find_spec("av") is None:
        raise MissingExtraError("video", "video files")
    import av

    return av


def write_video(path: Path, film: Pictures, *, fps: int = 10, codec: str = "libx264", quality: int = 18) -> None:
    """Frames to a video file; H.264 wants even sides. A lower `quality` number loses less; 0 is lossless in luma."""
    av = av_module()
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=fps, options={"crf": str(quality)})
        stream.height, stream.width, stream.pix_fmt = film.shape[1], film.shape[2], "yuv444p"
        for picture in film:
            for packet in stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")):
                container.mux(packet)
        for packet in stream.encode():
            container.mux(packet)


def read_video(
    path: Path, start: float = 0.0, end: float = float("inf"), size: tuple[int, int] | None = None
) -> Pictures:
    """Frames whose time (in seconds) lies in [start, end), resized to (height, width) if asked."""
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


def decode_picture(data: bytes) -> Pictures:
    """A JPEG or PNG, (H, W, 3)."""
    av = av_module()
    kind = "png" if data[:4] == b"\x89PNG" else "mjpeg"
    decoder = av.CodecContext.create(kind, "r")
    frames = [*decoder.decode(av.Packet(data)), *decoder.decode(None)]
    if len(frames) != 1:
        raise StoreError("picture", f"{len(data)} bytes are not one {kind} picture")
    found: Pictures = frames[0].to_ndarray(format="rgb24")
    return found


def resize(picture: Pictures, size: tuple[int, int]) -> Pictures:
    """A picture (H, W, 3) at another (height, width)."""
    frame = av_module().VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
    found: Pictures = frame.reformat(size[1], size[0], interpolation="AREA").to_ndarray(format="rgb24")
    return found
