// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel's error numbers.

use linux_raw_sys::errno;

/// An error number returned by a system call, always in `1..4096`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[doc(alias = "errno")]
pub struct Errno(i32);

macro_rules! names {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(
                #[allow(missing_docs)]
                pub const $name: Errno = Errno(errno::$name as i32);
            )*

            /// The number's name in errno(3); `"E?"` for an unknown number.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Errno::$name => stringify!($name),)*
                    _ => "E?",
                }
            }
        }
    };
}

names! {
    EPERM, ENOENT, ESRCH, EINTR, EIO, ENXIO, E2BIG, ENOEXEC, EBADF, ECHILD, EAGAIN, ENOMEM, EACCES, EFAULT, ENOTBLK,
    EBUSY, EEXIST, EXDEV, ENODEV, ENOTDIR, EISDIR, EINVAL, ENFILE, EMFILE, ENOTTY, ETXTBSY, EFBIG, ENOSPC, ESPIPE,
    EROFS, EMLINK, EPIPE, EDOM, ERANGE, EDEADLK, ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP, ENODATA, EOVERFLOW,
    ELIBBAD, EUSERS, ENOTSOCK, EOPNOTSUPP, ETOOMANYREFS, ETIMEDOUT, ECONNREFUSED, ESTALE, EDQUOT, ECANCELED, ENOMSG,
    EPROTO, EMSGSIZE, ENOTCONN, ECONNRESET, ENOBUFS, EADDRINUSE, EAFNOSUPPORT, EREMOTEIO, ENOKEY, EHWPOISON, EBADFD,
}

impl Errno {
    /// Wraps an error number. A number outside `1..4096` becomes `EIO`.
    pub const fn from_raw(number: i32) -> Errno {
        if 0 < number && number < 4096 { Errno(number) } else { Errno::EIO }
    }

    /// The number itself.
    pub const fn raw(self) -> i32 {
        self.0
    }

    /// Splits the raw result of a system call into value and errno.
    pub(crate) const fn check(result: isize) -> Result<usize, Errno> {
        if -4096 < result && result < 0 { Err(Errno(-result as i32)) } else { Ok(result as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// landlock_restrict_self returns EBADFD for a descriptor that is not a ruleset.
    #[test]
    fn ebadfd_has_a_name() {
        assert_eq!((Errno::EBADFD.name(), Errno::EBADFD.raw()), ("EBADFD", 77));
    }
}
