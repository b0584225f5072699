"""Films side by side: what was real, what was predicted, and where they differ.

film_strip(first, real, predicted)      # one picture: three rows of frames
side_by_side(first, real, predicted)    # a film: three pictures in each frame
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from terrella.show.png import png

Pictures = NDArray[np.uint8]
ENLARGE, GAP = 2, 2


def difference(real: Pictures, predicted: Pictures) -> Pictures:
    """White where both agree, darker the more they differ."""
    found: Pictures = (255 - np.abs(real.astype(np.int16) - predicted)).astype(np.uint8)
    return found


def film_strip(first: Pictures, real: Pictures, predicted: Pictures) -> Pictures:
    """Time goes to the right; the first column is what the model was shown."""
    shown = first[None]
    rows = (np.concatenate([shown, film]) for film in (real, predicted))
    top, middle = (_row(film) for film in rows)
    bottom = _row(np.concatenate([np.full_like(shown, 255), difference(real, predicted)]))
    gap = np.full((2 * GAP, top.shape[1], 3), 255, np.uint8)
    return np.concatenate([top, middle, bottom, gap])


def side_by_side(first: Pictures, real: Pictures, predicted: Pictures) -> Pictures:
    """Real, predicted, difference in every frame."""
    shown = np.concatenate([first[None], real]), np.concatenate([first[None], predicted])
    return np.stack([_row(np.stack([a, b, difference(a, b)])) for a, b in zip(*shown, strict=True)])


def write_picture(path: Path, picture: Pictures) -> None:
    """A PNG file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(png(picture))


def _row(film: Pictures) -> Pictures:
    """Frames beside each other, enlarged, with white between them; sides stay even, as video codecs want."""
    large = film.repeat(ENLARGE, axis=1).repeat(ENLARGE, axis=2)
    framed = np.pad(large, ((0, 0), (GAP, 0), (0, GAP), (0, 0)), constant_values=255)
    return np.concatenate(list(framed), axis=1)
