// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads the loader, the needed libraries and the imports of an ELF file.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use object::elf::{
    DF_1_PIE, DT_FLAGS_1, DT_NEEDED, DT_NULL, DT_RPATH, DT_RUNPATH, DT_STRSZ, DT_STRTAB, DT_SYMTAB, EM_AARCH64,
    EM_X86_64, FileHeader64, Machine, PT_DYNAMIC, PT_INTERP, PT_LOAD, SHT_DYNSYM, Sym64,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader, Sym};
use object::{LittleEndian as Little, ReadCache, ReadRef};

pub const MAGIC: &[u8] = b"\x7fELF";

/// The functions that the preload replaces.
pub const REPLACED: [&str; 4] = ["posix_spawn", "posix_spawnp", "pidfd_spawn", "pidfd_spawnp"];
/// The other functions that start programs. `system` and `popen` call a function inside libc.
pub const OTHERS: [&str; 7] = ["fork", "_Fork", "vfork", "clone", "clone3", "system", "popen"];
/// The function that loads libraries at run time.
pub const DLOPEN: &str = "dlopen";

/// The processor for which this program is built, in ELF headers.
const MACHINE: Machine = if cfg!(target_arch = "aarch64") { EM_AARCH64 } else { EM_X86_64 };

/// The parts of an ELF file that decide whether a preload has an effect.
#[derive(Debug, Default)]
pub struct Elf {
    /// Whether the file is for this processor. The other fields are empty if it is not.
    pub is_for_this_machine: bool,
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

type Header = FileHeader64<Little>;
type Symbol = Sym64<Little>;

impl Elf {
    /// Reads a file that begins with `MAGIC`. Returns `None` if the file is damaged.
    pub fn read(file: &File) -> Option<Elf> {
        let data = &ReadCache::new(file);
        let header = data.read_at::<Header>(0).ok()?;
        if !header.is_class_64() || !header.is_little_endian() || header.e_machine(Little) != MACHINE {
            return Some(Elf::default());
        }
        let segments = header.program_headers(Little, data).ok()?;
        let segment = |kind| segments.iter().find(|segment| segment.p_type(Little) == kind);
        let mut elf = Elf { is_for_this_machine: true, ..Elf::default() };
        if let Some(interpreter) = segment(PT_INTERP) {
            elf.loader = Some(OsStr::from_bytes(interpreter.interpreter(Little, data).ok()??).into());
        }
        let Some(dynamic) = segment(PT_DYNAMIC) else {
            elf.is_static = true;
            return Some(elf);
        };
        let dynamic = dynamic.dynamic(Little, data).ok()??;
        let entries = || dynamic.iter().take_while(|entry| entry.tag(Little) != DT_NULL);
        let value = |tag| entries().find(|entry| entry.tag(Little) == tag).map(|entry| entry.val(Little));
        // Libraries do not have the flag of an executable, static position-independent programs do.
        elf.is_static = elf.loader.is_none() && value(DT_FLAGS_1).is_some_and(|flags| flags & DF_1_PIE.0 != 0);
        let (Some(strings), Some(length)) = (value(DT_STRTAB), value(DT_STRSZ)) else { return Some(elf) };
        // The place in the file of an address in memory.
        let offset = |address: u64| {
            let mut loaded = segments.iter().filter(|segment| segment.p_type(Little) == PT_LOAD);
            loaded.find_map(|segment| {
                let inside = address.checked_sub(segment.p_vaddr(Little))?;
                segment.p_offset(Little).checked_add(inside).filter(|_| inside < segment.p_filesz(Little))
            })
        };
        elf.strings = data.read_bytes_at(offset(strings)?, length).ok()?.to_vec();
        let text = |place: u64| string(&elf.strings, usize::try_from(place).ok()?);
        elf.needed = entries()
            .filter(|entry| entry.tag(Little) == DT_NEEDED)
            .filter_map(|entry| text(entry.val(Little)))
            .collect();
        elf.rpath = value(DT_RPATH).and_then(text);
        elf.runpath = value(DT_RUNPATH).and_then(text);
        if let Some(symbols) = value(DT_SYMTAB) {
            let sections = header.section_headers(Little, data).unwrap_or_default();
            // Only a section has the number of symbols. In a file without sections, the strings follow the symbols.
            let symbols = match sections.iter().find(|section| section.sh_type(Little) == SHT_DYNSYM) {
                Some(section) => section.data_as_array(Little, data).ok()?,
                None => {
                    let count = usize::try_from(strings.checked_sub(symbols)?).ok()? / size_of::<Symbol>();
                    data.read_slice_at(offset(symbols)?, count).ok()?
                }
            };
            elf.imports = elf.imports(symbols);
        }
        Some(elf)
    }

    /// Whether the file defines this version of its symbols.
    pub fn defines_version(&self, version: &str) -> bool {
        self.strings.split(|byte| *byte == 0).any(|string| string == version.as_bytes())
    }

    fn imports(&self, symbols: &[Symbol]) -> Vec<&'static str> {
        let import = |symbol: &Symbol| {
            let name = string(&self.strings, symbol.st_name(Little) as usize)?;
            let mut known = REPLACED.into_iter().chain(OTHERS).chain([DLOPEN]);
            known.find(|known| name == *known)
        };
        let undefined = symbols.iter().filter(|symbol| symbol.is_undefined(Little));
        let mut imports: Vec<_> = undefined.filter_map(import).collect();
        imports.sort_unstable();
        // A file can import two versions of a function.
        imports.dedup();
        imports
    }
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
    use std::os::unix::fs::FileExt;

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
