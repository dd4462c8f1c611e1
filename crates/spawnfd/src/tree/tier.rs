// SPDX-License-Identifier: MIT OR Apache-2.0
//! The tiers of control over a process tree.

named! {
    /// How far control of a process tree reaches.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::tree::TreeControl;
    /// use spawnfd::{Command, Run};
    /// let output = Command::new("true").run_with(&Run::new().tree(TreeControl::Auto))?;
    /// if !output.tree.is_complete() {
    ///     println!("a daemon of the program may have survived (tier {})", output.tree);
    /// }
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    #[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
    #[non_exhaustive]
    pub enum Tier {
        /// A cgroup for the tree: reaches every process that does not move itself to another cgroup. The tree ends with
        /// the owner.
        Cgroup = "cgroup",
        /// A pid namespace for the tree: reaches every process. The tree ends with the owner.
        Pidns = "pidns",
        /// A helper process for the tree, which is a subreaper and the program's parent: reaches every process, unless
        /// a process kills the helper. The tree ends with the owner.
        Subreaper = "subreaper",
        /// The session, the process group and known descendants. A process that leaves the session and loses its parent
        /// before the library sees it may survive. The tree ends with the owner.
        Guard = "guard",
        /// Reaches the same processes as [`Guard`](Tier::Guard), but the tree survives if the owner is killed.
        @ #[default]
        Group = "group",
    }
}

impl Tier {
    /// Whether control also reaches processes that leave the session. With [`Guard`](Tier::Guard) and
    /// [`Group`](Tier::Group), a process that has called setsid may survive without being listed as a survivor.
    pub fn is_complete(self) -> bool {
        matches!(self, Tier::Cgroup | Tier::Pidns | Tier::Subreaper)
    }
}

words! {
    /// The tier that a caller asks for.
    ///
    /// # Examples
    /// ```
    /// use spawnfd::tree::{Tier, TreeControl};
    /// use spawnfd::{Command, Run};
    /// let run = Run::new().tree(TreeControl::Group); // no guard: if this process ends, the program runs on
    /// assert_eq!(Command::new("true").run_with(&run)?.tree, Tier::Group);
    /// # Ok::<(), spawnfd::Error>(())
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
    #[non_exhaustive]
    pub enum TreeControl {
        /// The session, the process group and known descendants, without a helper process: the tree outlives this process.
        @ #[default]
        Group = "group",
        /// The same processes. A helper process (the guard) ends the tree if this process ends, however that happens. An
        /// error if no guard can be started.
        Guard = "guard",
        /// Every process, by a helper that becomes the program's parent. An error if no helper can be started.
        ///
        /// `getppid` of the program returns the pid of the helper. A wait for the program by other code than its
        /// [`Child`](crate::Child) fails with ECHILD, because the program is not a child of this process.
        Subreaper = "subreaper",
        /// Every process that does not leave the cgroup. An error if no cgroup can be created.
        Cgroup = "cgroup",
        /// Every process, by a pid namespace. An error if no pid namespace can be created.
        ///
        /// The program is process 2 of its namespace, and `getppid` returns 0. If the caller may not create a pid
        /// namespace, the library also creates a user namespace with the caller's effective ids and without
        /// capabilities.
        Pidns = "pidns",
        /// The most complete tier available of `cgroup`, `subreaper`, `guard` and `group`.
        ///
        /// A command that uses parked processes or has a parent-death signal skips the tier subreaper.
        Auto = "auto",
    }
}
