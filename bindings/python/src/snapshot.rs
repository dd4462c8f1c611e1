// SPDX-License-Identifier: MIT OR Apache-2.0
//! `spawnfd.Snapshot`, and the native part of SnapshotCache.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyInt;
use spawnfd::snapshot as core;

use crate::arguments::{descriptor, integer, os_string_or, wrong_value};
use crate::errors;

/// The contents of a file at one moment; snapshot() and SnapshotCache.get() create it.
///
///     with sf.snapshot("/usr/bin/rg") as snapshot:
///         sf.Template.from_fd(snapshot).run(["-n", "TODO"])
///
/// The snapshot's descriptor (fileno()) can be read, mapped and executed. The file offset is 0 at
/// first. The descriptor is closed at the end of the block, by close(), or with the last reference.
/// Snapshots of one version from one cache share the file offset: read them with os.pread().
#[pyclass(frozen, module = "spawnfd")]
#[derive(Debug)]
pub struct Snapshot(Mutex<Option<core::Snapshot>>);

impl Snapshot {
    fn with_open<T>(&self, action: impl FnOnce(&core::Snapshot) -> T) -> PyResult<T> {
        let snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        snapshot.as_ref().map(action).ok_or_else(|| wrong_value(&"snapshot", "the Snapshot is closed"))
    }
}

#[pymethods]
impl Snapshot {
    /// Returns the descriptor.
    ///
    /// Raises:
    ///     ValueError: The snapshot is closed.
    ///     SpawnError: EBADF: the descriptor number now refers to another file.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        let number = self.with_open(|snapshot| snapshot.descriptor().map(|fd| fd.as_raw_fd()))?;
        number.map_err(|error| errors::exception(py, &error, None))
    }

    /// How the contents are stored: "reflink" or "memfd".
    ///
    /// "reflink": an unnamed file in the same file system that shares the file's extents. "memfd":
    /// a sealed copy in memory.
    ///
    /// Raises:
    ///     ValueError: The snapshot is closed.
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        self.with_open(|snapshot| snapshot.kind().name())
    }

    /// Whether the snapshot is closed.
    #[getter]
    fn closed(&self) -> bool {
        self.with_open(|_| ()).is_err()
    }

    /// Closes the descriptor.
    fn close(&self) {
        let snapshot = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(snapshot);
    }

    fn __enter__(this: Py<Snapshot>) -> Py<Snapshot> {
        this
    }

    #[pyo3(signature = (*_error))]
    fn __exit__(&self, _error: &Bound<'_, PyAny>) {
        self.close();
    }

    fn __repr__(&self, py: Python<'_>) -> String {
        match (self.fileno(py), self.kind()) {
            (Ok(fd), Ok(kind)) => format!("<spawnfd.Snapshot {fd}: {kind}>"),
            (Err(_), Ok(kind)) => format!("<spawnfd.Snapshot lost: {kind}>"),
            _ => "<spawnfd.Snapshot closed>".to_owned(),
        }
    }
}

/// Takes a snapshot of a path by `open`, or of an open file by `take`.
fn taken(
    file: &Bound<'_, PyAny>,
    open: impl FnOnce(&Path) -> spawnfd::Result<core::Snapshot> + Send,
    take: impl FnOnce(BorrowedFd<'static>) -> spawnfd::Result<core::Snapshot> + Send,
) -> PyResult<Snapshot> {
    let py = file.py();
    let (taken, path) = if file.is_instance_of::<PyInt>() || file.hasattr(intern!(py, "fileno"))? {
        let fd = descriptor(file, &"file")?;
        (py.detach(|| take(fd)), None)
    } else {
        let path = os_string_or(file, &"file", "a path, a descriptor (int) or an object with fileno()")?;
        (py.detach(|| open(Path::new(&path))), Some(path))
    };
    let snapshot = taken.map_err(|error| errors::exception(py, &error, path.as_deref()))?;
    Ok(Snapshot(Mutex::new(Some(snapshot))))
}

/// Takes a snapshot of a path or of an open file.
#[pyfunction]
pub fn snapshot(file: &Bound<'_, PyAny>) -> PyResult<Snapshot> {
    taken(file, |path| core::open(path), core::take)
}

/// A cache of snapshots by file version.
#[pyclass(frozen, module = "spawnfd._spawnfd")]
#[derive(Debug)]
pub struct SnapshotCache(core::SnapshotCache);

#[pymethods]
impl SnapshotCache {
    #[new]
    fn new(capacity: &Bound<'_, PyAny>) -> PyResult<SnapshotCache> {
        Ok(SnapshotCache(core::SnapshotCache::new(integer(capacity, &"capacity")?)))
    }

    fn get(&self, file: &Bound<'_, PyAny>) -> PyResult<Snapshot> {
        taken(file, |path| self.0.open(path), |fd| self.0.get(fd))
    }

    fn clear(&self) {
        self.0.clear();
    }

    /// Returns hits, misses, stale, evicted and entries.
    fn stats(&self) -> (u64, u64, u64, u64, usize) {
        let stats = self.0.stats();
        (stats.hits, stats.misses, stats.stale, stats.evicted, stats.entries)
    }
}
