// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the loader, the needed libraries and the imports of an ELF file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use libc::{ELFCLASS64, ELFDATA2LSB, EM_X86_64, PT_DYNAMIC, PT_INTERP, PT_LOAD};

pub const MAGIC: &[u8] = b"\x7fELF";

/// The functions that the preload replaces.
pub const REPLACED: [&str; 4] = ["posix_spawn", "posix_spawnp", "pidfd_spawn", "pidfd_spawnp"];
/// The other functions that start programs. `system` and `popen` call a function inside libc.
pub const OTHERS: [&str; 7] = ["fork", "_Fork", "vfork", "clone", "clone3", "system", "popen"];
/// The function that loads libraries at run time.
pub const DLOPEN: &str = "dlopen";

/// The parts of an ELF file that decide whether a preload has an effect.
#[derive(Debug, Default)]
pub struct Elf {
    /// Whether the file is for x86_64. The other fields are empty if it is not.
    pub is_x86_64: bool,
    /// The path of the dynamic loader (PT_INTERP). Libraries and static programs have none.
    pub loader: Option<PathBuf>,
    pub is_static: bool,
    /// The names of the needed libraries.
    pub needed: Vec<OsString>,
    pub rpath: Option<OsString>,
    pub runpath: Option<OsString>,
    /// The imported ones of `REPLACED`, `OTHERS` and `DLOPEN`.
    pub imports: Vec<&'static str>,
    /// The strings of the dynamic section, with the names of the versions that the file defines.
    strings: Vec<u8>,
}

// The names and values of elf(5) that libc lacks.
const HEADER_SIZE: usize = 64;
const SECTION_SIZE: usize = 64;
const SHT_DYNSYM: u64 = 11;
const SYMBOL_SIZE: usize = 24;
const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_STRSZ: u64 = 10;
const DT_RPATH: u64 = 15;
const DT_RUNPATH: u64 = 29;
const DT_FLAGS_1: u64 = 0x6fff_fffb;
/// The flag of an executable. Libraries do not have it, static position-independent programs do.
const DF_1_PIE: u64 = 0x0800_0000;
/// The first symbol is always empty, and a symbol of section 0 is an import.
const SHN_UNDEF: u64 = 0;

/// A part of the file: where it is, and its length in bytes.
type Range = (u64, u64);

/// A program header: where its contents are in memory and in the file.
struct Segment {
    kind: u32,
    address: u64,
    contents: Range,
}

impl Elf {
    /// Reads a file that begins with `MAGIC`. Returns `None` if the file is damaged.
    pub fn read(file: &File) -> Option<Elf> {
        let header = bytes(file, (0, HEADER_SIZE as u64))?;
        if header[4..6] != [ELFCLASS64, ELFDATA2LSB] || number::<2>(&header, 18)? != u64::from(EM_X86_64) {
            return Some(Elf::default());
        }
        let segments = segments(file, &header)?;
        let contents = |kind| segments.iter().find(|segment| segment.kind == kind).map(|segment| segment.contents);
        let mut elf = Elf { is_x86_64: true, ..Elf::default() };
        if let Some(range) = contents(PT_INTERP) {
            elf.loader = Some(string(&bytes(file, range)?, 0)?.into());
        }
        let Some(dynamic) = contents(PT_DYNAMIC) else {
            elf.is_static = true;
            return Some(elf);
        };
        let dynamic = bytes(file, dynamic)?;
        let entries =
            dynamic.chunks_exact(16).filter_map(|entry| Some((number::<8>(entry, 0)?, number::<8>(entry, 8)?)));
        let entries: Vec<(u64, u64)> = entries.take_while(|(tag, _)| *tag != DT_NULL).collect();
        let value = |tag| entries.iter().find(|entry| entry.0 == tag).map(|entry| entry.1);
        elf.is_static = elf.loader.is_none() && value(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE != 0);
        let (Some(strings), Some(length)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return Some(elf) };
        elf.strings = bytes(file, (offset(&segments, strings)?, length))?;
        let text = |place: u64| string(&elf.strings, usize::try_from(place).ok()?);
        elf.needed = entries.iter().filter(|entry| entry.0 == DT_NEEDED).filter_map(|entry| text(entry.1)).collect();
        elf.rpath = value(DT_RPATH).and_then(text);
        elf.runpath = value(DT_RUNPATH).and_then(text);
        if let Some(symbols) = value(DT_SYMTAB) {
            let in_memory = || Some((offset(&segments, symbols)?, strings.checked_sub(symbols)?));
            // Only a section has the number of symbols. In a file without sections, the strings follow the symbols.
            let symbols = symbol_section(file, &header).or_else(in_memory)?;
            elf.imports = elf.imports(&bytes(file, symbols)?);
        }
        Some(elf)
    }

    /// Whether the file defines this version of its symbols.
    pub fn defines_version(&self, version: &str) -> bool {
        self.strings.split(|byte| *byte == 0).any(|string| string == version.as_bytes())
    }

    fn imports(&self, symbols: &[u8]) -> Vec<&'static str> {
        let import = |symbol: &[u8]| {
            let name = number::<4>(symbol, 0).filter(|_| number::<2>(symbol, 6) == Some(SHN_UNDEF))?;
            let name = self.strings.get(usize::try_from(name).ok()?..)?.split(|byte| *byte == 0).next()?;
            let mut known = REPLACED.into_iter().chain(OTHERS).chain([DLOPEN]);
            known.find(|known| known.as_bytes() == name)
        };
        let mut imports: Vec<_> = symbols.chunks_exact(SYMBOL_SIZE).filter_map(import).collect();
        imports.sort_unstable();
        // A file can import two versions of a function.
        imports.dedup();
        imports
    }
}

fn segments(file: &File, header: &[u8]) -> Option<Vec<Segment>> {
    let (size, count) = (number::<2>(header, 54)?, number::<2>(header, 56)?);
    let table = bytes(file, (number::<8>(header, 32)?, size * count))?;
    let segment = |entry: &[u8]| {
        let contents = (number::<8>(entry, 8)?, number::<8>(entry, 32)?);
        Some(Segment { kind: number::<4>(entry, 0)? as u32, address: number::<8>(entry, 16)?, contents })
    };
    table.chunks_exact(usize::try_from(size).ok()?.max(1)).map(segment).collect()
}

/// Returns the place in the file of an address in memory.
fn offset(segments: &[Segment], address: u64) -> Option<u64> {
    let mut loaded = segments.iter().filter(|segment| segment.kind == PT_LOAD);
    loaded.find_map(|segment| {
        let inside = address.checked_sub(segment.address).filter(|inside| *inside < segment.contents.1)?;
        segment.contents.0.checked_add(inside)
    })
}

/// Returns the place of the section with the dynamic symbols.
fn symbol_section(file: &File, header: &[u8]) -> Option<Range> {
    let count = number::<2>(header, 60)?;
    let table = bytes(file, (number::<8>(header, 40)?, count * SECTION_SIZE as u64))?;
    let section = table.chunks_exact(SECTION_SIZE).find(|entry| number::<4>(entry, 4) == Some(SHT_DYNSYM))?;
    Some((number::<8>(section, 24)?, number::<8>(section, 32)?))
}

/// Reads a part of the file. Returns `None` if the file ends before it.
fn bytes(file: &File, (start, length): Range) -> Option<Vec<u8>> {
    if start.checked_add(length)? > file.metadata().ok()?.len() {
        return None;
    }
    let mut bytes = vec![0; usize::try_from(length).ok()?];
    file.read_exact_at(&mut bytes, start).ok()?;
    Some(bytes)
}

/// Returns the little-endian number of `N` bytes, at most 8, at a place.
pub fn number<const N: usize>(bytes: &[u8], place: usize) -> Option<u64> {
    let mut number = [0; 8];
    number[..N].copy_from_slice(bytes.get(place..place.checked_add(N)?)?);
    Some(u64::from_le_bytes(number))
}

/// Returns the string that begins at a place and ends before a zero byte.
pub fn string(bytes: &[u8], place: usize) -> Option<OsString> {
    let string = bytes.get(place..)?.split(|byte| *byte == 0).next()?;
    Some(OsStr::from_bytes(string).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn damaged_files_are_read_without_a_panic() {
        let whole = std::fs::read("/proc/self/exe").unwrap();
        let whole = &whole[..whole.len().min(1 << 16)];
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(whole).unwrap();
        for length in (0..2048).chain([4096, whole.len() as u64 - 1]) {
            file.set_len(length).unwrap();
            let _ = Elf::read(&file);
            file.write_all_at(whole, 0).unwrap();
        }
        // All bits of each byte of the headers.
        for place in 4..2048 {
            file.write_all_at(&[!whole[place]], place as u64).unwrap();
            let _ = Elf::read(&file);
            file.write_all_at(&whole[place..=place], place as u64).unwrap();
        }
    }
}
