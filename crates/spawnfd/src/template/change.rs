// SPDX-License-Identifier: MIT OR Apache-2.0
//! Describes how a file differs from what a template recorded.

use spawnfd_child::Identity;
use spawnfd_sys::Errno;

/// Returns the sentence for a file that is no longer the recorded file. `now` is the file that the
/// caller finds at the path.
pub(super) fn describe(path: &str, recorded: &Identity, now: Result<Identity, Errno>) -> String {
    let how = match now {
        Err(Errno::ENOENT | Errno::ENOTDIR) => "it no longer exists".to_owned(),
        Err(errno) => format!("it cannot be examined: {}", crate::error::reason(errno)),
        Ok(now) if (now.device, now.inode) != (recorded.device, recorded.inode) => {
            format!("another file is at the path: {}", differences(recorded, &now))
        }
        Ok(now) if now == *recorded => "only the child sees a difference".to_owned(),
        Ok(now) => differences(recorded, &now),
    };
    format!("{path} changed since the template was created ({how})")
}

/// Lists the values that differ, in the form of stat(1).
fn differences(recorded: &Identity, now: &Identity) -> String {
    let time = |(seconds, nanoseconds): (i64, u32)| format!("{seconds}.{nanoseconds:09}");
    let values = |file: &Identity| {
        [
            ("device", format!("{}:{}", file.device.0, file.device.1)),
            ("inode", file.inode.to_string()),
            ("size", file.size.to_string()),
            ("mode", format!("{:04o}", file.mode & 0o7777)),
            ("owner", file.owner.to_string()),
            ("group", file.group.to_string()),
            ("mtime", time(file.mtime)),
            ("ctime", time(file.ctime)),
        ]
    };
    let mut changed: Vec<String> = (values(recorded).into_iter().zip(values(now)))
        .filter(|((_, before), (_, after))| before != after)
        .map(|((name, before), (_, after))| format!("{name} {before} -> {after}"))
        .collect();
    // Every change of a file also changes ctime, so mention ctime only if nothing else differs.
    if changed.len() > 1 {
        changed.retain(|change| !change.starts_with("ctime"));
    }
    changed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::features;
    use spawnfd_sys::abi;

    fn recorded() -> Identity {
        let mut file = Identity::of(features::killed_calls(), abi::AT_FDCWD, c"/").expect("the root directory exists");
        (file.device, file.inode, file.size, file.mode) = ((8, 1), 5, 5120, 0o100755);
        (file.owner, file.group) = (0, 0);
        (file.ctime, file.mtime) = ((1_700_000_000, 5), (1_600_000_000, 0));
        file
    }

    fn described(change: impl FnOnce(&mut Identity)) -> String {
        let mut now = recorded();
        change(&mut now);
        let text = describe("/usr/bin/rg", &recorded(), Ok(now));
        text.strip_prefix("/usr/bin/rg changed since the template was created ").expect("the same words").to_owned()
    }

    #[test]
    fn change_names_the_values_that_differ() {
        assert_eq!(described(|file| (file.size, file.ctime.1) = (5344, 6)), "(size 5120 -> 5344)");
        assert_eq!(described(|file| file.mode = 0o104755), "(mode 0755 -> 4755)");
        assert_eq!(described(|file| (file.owner, file.group) = (1, 2)), "(owner 0 -> 1, group 0 -> 2)");
        assert_eq!(described(|file| file.mtime.1 = 7), "(mtime 1600000000.000000000 -> 1600000000.000000007)");
        assert_eq!(described(|file| file.ctime.0 += 1), "(ctime 1700000000.000000005 -> 1700000001.000000005)");
        assert_eq!(described(|_| ()), "(only the child sees a difference)");
    }

    #[test]
    fn change_of_the_file_at_the_path() {
        let other = described(|file| (file.inode, file.size) = (6, 1));
        assert_eq!(other, "(another file is at the path: inode 5 -> 6, size 5120 -> 1)");
        let gone = describe("/x", &recorded(), Err(Errno::ENOENT));
        assert_eq!(gone, "/x changed since the template was created (it no longer exists)");
    }
}
