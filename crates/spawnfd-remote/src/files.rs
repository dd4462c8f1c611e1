// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and directories as a tar stream, for transfers between the two sides.
//!
//! The stream of a file has this one file, with the name `file`. The stream of a directory has the directory `.` and what
//! is below it.

use std::error::Error;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
use tar::{Archive, Builder, Entries, Entry, EntryType};

/// The end of the message of a transfer that exceeds its limit.
pub(crate) const TOO_LARGE: &str = "the transfer is larger than its limit";

/// The name of a single file in the stream.
const FILE: &str = "file";

/// Writes a file, or a directory and what is below it, as a tar stream. Links below the directory stay links. The stream
/// has permissions and times, but no owners.
///
/// # Errors
/// A file cannot be read, or the stream cannot be written.
pub fn pack(path: &Path, stream: impl Write) -> io::Result<()> {
    let path = fs::canonicalize(path)?;
    let mut builder = Builder::new(stream);
    builder.follow_symlinks(false);
    // A receiver of another implementation may not know the type of sparse files.
    builder.sparse(false);
    if path.is_dir() {
        builder.append_dir(".", &path)?;
        builder.append_dir_all("", &path)?;
    } else {
        builder.append_path_with_name(&path, FILE)?;
    }
    builder.into_inner()?.flush()
}

/// Reads a stream of [`pack`], and writes the file or directory to `path`. A file replaces the file that is there, once it
/// is complete. A directory is merged with the one that is there. Nothing is written outside of `path`.
///
/// # Errors
/// `FileTooLarge`: the stream has more than `max_bytes`. `InvalidData`: it is no such stream. `UnexpectedEof`: it is not
/// complete. A file cannot be written; earlier files of a directory stay. Each other file is as it was before.
pub fn unpack(stream: impl Read, path: &Path, max_bytes: u64) -> io::Result<()> {
    let mut archive = Archive::new(Bounded { stream, left: max_bytes });
    archive.set_overwrite(true);
    let mut entries = archive.entries()?;
    let Some(first) = entries.next() else {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the transfer has no file"));
    };
    let mut first = first?;
    match (first.header().entry_type(), first.path()?.to_str()) {
        (EntryType::Regular, Some(FILE)) => unpack_file(&mut first, path),
        (EntryType::Directory, Some("." | "./")) => {
            // The path may be a link to a directory. A link in the stream may not.
            let root = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
            create_directory(&root)?;
            unpack_directory(entries, &fs::canonicalize(root)?)
        }
        _ => Err(invalid(&first.path()?)),
    }
}

/// Writes the entries of a directory.
fn unpack_directory<R: Read>(entries: Entries<'_, R>, root: &Path) -> io::Result<()> {
    let mut directories = Vec::new();
    for entry in entries {
        let mut entry = entry?;
        let place = place(&entry, root)?;
        match entry.header().entry_type() {
            EntryType::Directory => {
                create_directory(&place)?;
                directories.push((place, entry.header().mode()?));
            }
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => unpack_file(&mut entry, &place)?,
            _ => {
                entry.unpack_in(root).map_err(|error| with_cause(&error))?;
            }
        }
    }
    // A directory that its owner cannot write must get its files first.
    for (directory, mode) in directories.into_iter().rev() {
        fs::set_permissions(directory, permissions(mode))?;
    }
    Ok(())
}

/// Creates a directory, unless it exists. A link is not followed.
fn create_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && fs::symlink_metadata(path)?.is_dir() => Ok(()),
        done => done,
    }
}

/// The path of an entry of a directory. Its parent exists, and is `root` or below it.
fn place(entry: &Entry<'_, impl Read>, root: &Path) -> io::Result<PathBuf> {
    let path = entry.path()?;
    let mut place = root.to_path_buf();
    for part in path.components() {
        match part {
            Component::Normal(name) => place.push(name),
            Component::CurDir => {}
            _ => return Err(invalid(&path)),
        }
    }
    // A link may lead out of the directory.
    match place.parent() {
        Some(parent) if place != root && fs::canonicalize(parent)?.starts_with(root) => Ok(place),
        _ => Err(invalid(&path)),
    }
}

/// An error with its first cause, which the error of tar leaves out.
fn with_cause(error: &io::Error) -> io::Error {
    let mut first: &dyn Error = error;
    while let Some(cause) = first.source() {
        first = cause;
    }
    match first.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), first.to_string()),
    }
}

/// The permissions of a file or a directory, without a set-user-ID bit.
fn permissions(mode: u32) -> Permissions {
    Permissions::from_mode(mode & 0o777)
}

/// Writes a file without a name first, so that nothing stays of it if this process is killed.
fn unpack_file(entry: &mut Entry<'_, impl Read>, path: &Path) -> io::Result<()> {
    let (size, mode, time) = (entry.size(), entry.header().mode()?, entry.header().mtime()?);
    let new = beside(path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Some file systems have no files without a name. Without /proc, such a file cannot get one.
    let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
    let unnamed = open(directory, flags, Mode::RUSR | Mode::WUSR).ok().map(File::from);
    let unnamed = unnamed.filter(|file| own_path(file).exists());
    let (is_unnamed, mut file) = (unnamed.is_some(), unnamed.map_or_else(|| File::create_new(&new), Ok)?);
    let written = (|| {
        if io::copy(entry, &mut file)? != size {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is not complete"));
        }
        file.set_permissions(permissions(mode))?;
        if let Some(time) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(time)) {
            file.set_modified(time)?;
        }
        if is_unnamed {
            linkat(CWD, own_path(&file), CWD, &new, AtFlags::SYMLINK_FOLLOW)?;
        }
        fs::rename(&new, path)
    })();
    written.inspect_err(|_| _ = fs::remove_file(&new))
}

/// The path of an open file for this process.
fn own_path(file: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

/// The path of a new file in the same directory.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let Some(name) = path.file_name() else { return Err(io::ErrorKind::IsADirectory.into()) };
    let mut new = name.to_owned();
    // Several transfers of a process may have the same target.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    new.push(format!(".spawnfd-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    Ok(path.with_file_name(new))
}

fn invalid(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("the transfer has a wrong file: {}", path.display()))
}

/// A stream that fails after a number of bytes.
#[derive(Debug)]
struct Bounded<R> {
    stream: R,
    left: u64,
}

impl<R: Read> Read for Bounded<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.stream.read(buffer)?;
        self.left = self
            .left
            .checked_sub(count as u64)
            .ok_or_else(|| io::Error::new(io::ErrorKind::FileTooLarge, TOO_LARGE))?;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::set_permissions;
    use std::os::unix::fs::symlink;

    use super::*;

    fn packed(path: &Path) -> Vec<u8> {
        let mut bytes = Vec::new();
        pack(path, &mut bytes).expect("readable");
        bytes
    }

    #[test]
    fn a_directory_and_a_file_are_copied() {
        let (from, to) = (spawnfd_tests::scratch(), spawnfd_tests::scratch());
        let tree = from.path().join("tree");
        fs::create_dir_all(tree.join("a/empty")).expect("own directory");
        fs::write(tree.join("a/script"), "#!/bin/sh\n").expect("own directory");
        set_permissions(tree.join("a/script"), Permissions::from_mode(0o750)).expect("own file");
        symlink("a/script", tree.join("link")).expect("own directory");
        let long = "x".repeat(200);
        fs::write(tree.join(&long), vec![7; 100_000]).expect("own directory");
        let copy = to.path().join("copy");
        for _ in 0..2 {
            unpack(&packed(&tree)[..], &copy, u64::MAX).expect("copied");
        }
        assert!(copy.join("a/empty").is_dir());
        assert_eq!(fs::read_link(copy.join("link")).expect("a link"), Path::new("a/script"));
        assert_eq!(copy.join("a/script").metadata().expect("a file").permissions().mode() & 0o777, 0o750);
        assert_eq!(fs::read(copy.join(&long)).expect("a file"), vec![7; 100_000]);
        let file = to.path().join("file");
        fs::write(&file, "old").expect("own directory");
        unpack(&packed(&tree.join("link"))[..], &file, u64::MAX).expect("copied");
        assert_eq!(fs::read_to_string(&file).expect("a file"), "#!/bin/sh\n");
        assert_eq!(fs::read_dir(to.path()).expect("readable").count(), 2);
    }

    #[test]
    fn a_directory_keeps_permissions_and_times() {
        let (from, to) = (spawnfd_tests::scratch(), spawnfd_tests::scratch());
        let (tree, copy) = (from.path().join("tree"), to.path().join("copy"));
        fs::create_dir_all(tree.join("locked/sub")).expect("own directory");
        fs::write(tree.join("locked/sub/file"), "text").expect("own directory");
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        File::open(tree.join("locked/sub/file")).and_then(|file| file.set_modified(time)).expect("own file");
        for name in ["locked/sub", "locked"] {
            set_permissions(tree.join(name), Permissions::from_mode(0o555)).expect("own directory");
        }
        let mode = |name: &str| copy.join(name).metadata().expect("it exists").permissions().mode() & 0o777;
        unpack(&packed(&tree)[..], &copy, u64::MAX).expect("copied");
        assert_eq!((mode("locked"), mode("locked/sub")), (0o555, 0o555));
        assert_eq!(copy.join("locked/sub/file").metadata().expect("a file").modified().expect("a time"), time);
        for name in ["locked", "locked/sub"].iter().flat_map(|name| [tree.join(name), copy.join(name)]) {
            // The scratch directories are removed.
            set_permissions(name, Permissions::from_mode(0o755)).expect("own directory");
        }
    }

    #[test]
    fn a_cut_directory_leaves_the_files_that_were_there() {
        let (from, to) = (spawnfd_tests::scratch(), spawnfd_tests::scratch());
        let (tree, copy) = (from.path().join("tree"), to.path().join("copy"));
        fs::create_dir_all(tree.join("kind")).expect("own directory");
        fs::write(tree.join("kind/file"), vec![7; 100_000]).expect("own directory");
        let bytes = packed(&tree);
        fs::create_dir_all(copy.join("kind")).expect("own directory");
        fs::write(copy.join("kind/file"), "old").expect("own directory");
        assert!(unpack(&bytes[..50_000], &copy, u64::MAX).is_err());
        assert_eq!(unpack(&bytes[..], &copy, 50_000).expect_err("large").kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(fs::read_to_string(copy.join("kind/file")).expect("a file"), "old");
        assert_eq!(fs::read_dir(copy.join("kind")).expect("readable").count(), 1);
        // A file where the stream has a directory.
        fs::remove_dir_all(copy.join("kind")).expect("own directory");
        fs::write(copy.join("kind"), "old").expect("own directory");
        assert!(unpack(&bytes[..], &copy, u64::MAX).is_err());
        assert_eq!(fs::read_to_string(copy.join("kind")).expect("a file"), "old");
    }

    #[test]
    fn a_cut_or_large_or_foreign_stream_is_an_error() {
        let (from, to) = (spawnfd_tests::scratch(), spawnfd_tests::scratch());
        let source = from.path().join("source");
        fs::write(&source, vec![1; 10_000]).expect("own directory");
        let (bytes, target) = (packed(&source), to.path().join("target"));
        for cut in [0, 100, 512, 600, 10_000] {
            assert!(unpack(&bytes[..cut], &target, u64::MAX).is_err(), "{cut}");
        }
        assert_eq!(unpack(&bytes[..], &target, 5000).expect_err("large").kind(), io::ErrorKind::FileTooLarge);
        assert!(unpack(&vec![b'x'; 2000][..], &target, u64::MAX).is_err());
        assert_eq!(fs::read_dir(to.path()).expect("readable").count(), 0);
    }

    #[test]
    fn nothing_is_written_outside() {
        let to = spawnfd_tests::scratch();
        let (target, outside) = (to.path().join("target"), to.path().join("outside"));
        fs::create_dir(&outside).expect("own directory");
        let mut builder = Builder::new(Vec::new());
        builder.append_dir(".", to.path()).expect("a directory");
        let mut link = tar::Header::new_gnu();
        link.set_entry_type(EntryType::Symlink);
        link.set_size(0);
        builder.append_link(&mut link, "link", &outside).expect("a link");
        let mut file = tar::Header::new_gnu();
        file.set_size(4);
        file.set_mode(0o644);
        builder.append_data(&mut file, "link/file", &b"text"[..]).expect("a file");
        let bytes = builder.into_inner().expect("bytes");
        assert!(unpack(&bytes[..], &target, u64::MAX).is_err());
        assert_eq!(fs::read_dir(&outside).expect("readable").count(), 0);
        // The mode of a directory is not that of a place outside.
        set_permissions(&outside, Permissions::from_mode(0o700)).expect("own directory");
        let mut builder = Builder::new(Vec::new());
        builder.append_dir(".", to.path()).expect("a directory");
        let mut directory = tar::Header::new_gnu();
        directory.set_entry_type(EntryType::Directory);
        directory.set_size(0);
        directory.set_mode(0o777);
        builder.append_data(&mut directory, "link", &b""[..]).expect("a directory");
        let bytes = builder.into_inner().expect("bytes");
        assert!(unpack(&bytes[..], &target, u64::MAX).is_err());
        assert_eq!(outside.metadata().expect("it exists").permissions().mode() & 0o777, 0o700);
    }
}
