"""Batches of a data set as TensorFlow's own kind of data set."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stoker.data.gather import Gathered
from stoker.data.loading.batch import collate
from stoker.data.loading.loader import Loader
from stoker.errors import DataError

if TYPE_CHECKING:
    from stoker.data.loading.dataset import Dataset


def make_tf(dataset: Dataset, batch_size: int = 1, **how: Any) -> Any:
    """Return a `tf.data.Dataset`; each time it is iterated over, it is the next epoch."""
    try:
        tensorflow = import_module("tensorflow")
    except ImportError:
        raise DataError(
            "cannot make a tf.data.Dataset",
            why="`tensorflow` is not installed in this Python",
            fix="pip install tensorflow, or stoker.Loader for batches of arrays",
        ) from None
    if not len(dataset):
        raise DataError(
            "cannot make a tf.data.Dataset of no samples",
            why=f"the first sample tells types and shapes, and `{dataset.path}` has none",
            fix=f"stoker ls {dataset.path}",
        )
    loader = _Loader(dataset, batch_size, **{"workers": "threads", **how})
    signature = _mapped(_spec, _mapped(_converted, loader.example()))

    def batches() -> Iterator[Any]:
        return (_mapped(_converted, each) for each in loader)

    made = tensorflow.data.Dataset.from_generator(batches, output_signature=signature)
    return made.apply(tensorflow.data.experimental.assert_cardinality(len(loader)))


class _Loader(Loader):
    """Makes batches of arrays, whatever else the program uses."""

    def example(self) -> Any:
        """Return a batch of one sample."""
        first = array("Q", [0])
        if self._is_plain():
            return self.dataset.batches([first])[0]
        work = self._work()
        return work.collate(work.samples(first, 0))

    def _finished(self, batch: Any) -> Any:
        return batch

    def _rest(self) -> Callable[[list[Any]], Any]:
        return collate


def _mapped(change: Callable[[Any], Any], batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _mapped(change, each) for name, each in batch.items()}
    if isinstance(batch, tuple):
        return tuple(_mapped(change, each) for each in batch)
    return change(batch)


def _converted(column: Any) -> Any:
    numpy = import_module("numpy")
    if isinstance(column, Gathered):
        return numpy.array([bytes(each) for each in column], dtype=object)
    if isinstance(column, list):
        is_text = isinstance(column[0], (str, bytes))
        column = numpy.array(column, dtype=object if is_text else None)
        if column.dtype == object and not is_text:
            raise DataError(
                "TensorFlow has no tensors of such samples",
                why=f"a value is {column[0]!r:.60}",
                fix="stoker.open(…, parts=…, transform=…), so that all are numbers, text or arrays",
            )
        return column
    return numpy.asarray(column)


def _spec(column: Any) -> Any:
    tensorflow = import_module("tensorflow")
    kind = tensorflow.string if column.dtype == object else tensorflow.as_dtype(column.dtype)
    return tensorflow.TensorSpec((None, *column.shape[1:]), kind)
