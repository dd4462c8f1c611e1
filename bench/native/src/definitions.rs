// SPDX-License-Identifier: MIT OR Apache-2.0
//! The structure of definitions.toml.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::Result;
use crate::programs::Programs;
use crate::samples::Key;

/// All definitions of the benchmarks.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definitions {
    pub environment: Environment,
    #[serde(rename = "method")]
    pub methods: Vec<MethodDef>,
    pub programs: BTreeMap<String, String>,
    #[serde(rename = "parent")]
    pub parents: Vec<ParentDef>,
    pub filters: Filters,
    pub first_insn: FirstInsn,
    pub lifecycle: Lifecycle,
    pub parallel: Parallel,
    pub snapshot: Snapshot,
    #[serde(rename = "ratio")]
    pub ratios: Vec<RatioDef>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Environment {
    pub search_path: Vec<String>,
    pub variables: BTreeMap<String, String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MethodDef {
    pub name: String,
    pub title: String,
    #[serde(default)]
    pub apart: bool,
    #[serde(default)]
    pub only_stdio: bool,
    #[serde(default)]
    pub plain: bool,
}

/// A parent process: the state that a worker sets up before it spawns.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ParentDef {
    pub name: String,
    #[serde(default)]
    pub allocate_mib: usize,
    #[serde(default)]
    pub touch_mib: usize,
    #[serde(default)]
    pub descriptors: usize,
    #[serde(default)]
    pub library_first: bool,
    #[serde(default)]
    pub busy_threads: usize,
    #[serde(default)]
    pub busy_elsewhere: bool,
    #[serde(default)]
    pub busy_policy: BusyPolicy,
    #[serde(default = "without_search")]
    pub search: Vec<bool>,
}

/// How the busy threads compete for the CPUs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BusyPolicy {
    /// SCHED_OTHER: a launch competes with the threads for the CPUs.
    #[default]
    Other,
    /// SCHED_IDLE: the threads run only on an otherwise idle CPU, so a launch preempts them.
    Idle,
}

fn without_search() -> Vec<bool> {
    vec![false]
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Filters {
    pub names: Vec<String>,
}

/// A count for a full run, and the count for `--quick`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Count {
    pub full: usize,
    pub quick: usize,
}

impl Count {
    /// Returns the count of this run.
    pub fn get(self, quick: bool) -> usize {
        if quick { self.quick } else { self.full }
    }
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FirstInsn {
    pub program: String,
    pub rounds: Count,
    pub per_round: Count,
    #[serde(default)]
    pub fewer: Vec<Fewer>,
}

/// A smaller number of samples for a parent or method in which one call is slow.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fewer {
    pub parent: String,
    pub method: Option<String>,
    pub per_round: Count,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lifecycle {
    pub parent: String,
    pub programs: Vec<String>,
    pub rounds: Count,
    pub per_round: Count,
    pub per_round_filtered: Count,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parallel {
    pub parent: String,
    pub program: String,
    pub threads: usize,
    pub methods: Vec<String>,
    pub rounds: Count,
    pub calls_per_thread: Count,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    pub bytes: usize,
    pub rounds: Count,
    pub per_round: Count,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RatioDef {
    pub id: String,
    pub meaning: String,
    #[serde(default)]
    pub bound: Bound,
    #[serde(default)]
    pub statistic: Statistic,
    pub over: Key,
    pub under: Key,
}

/// The bounds that a ratio must satisfy.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bound {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
}

impl Bound {
    /// Returns whether `value` is within the bounds, or `None` if the ratio has no bound.
    pub fn met_by(self, value: f64) -> Option<bool> {
        match (self.max, self.min) {
            (None, None) => None,
            (max, min) => Some(max.is_none_or(|m| value <= m) && min.is_none_or(|m| value >= m)),
        }
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Statistic {
    #[default]
    Median,
    Mean,
}

impl Definitions {
    /// Reads the definitions from `path`. Without a path, uses the built-in definitions.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or has an unknown key.
    pub fn load(path: Option<&Path>) -> Result<Self> {
        let text = match path {
            Some(path) => std::fs::read_to_string(path).with_context(|| path.display().to_string())?,
            None => include_str!("../definitions.toml").to_owned(),
        };
        toml::from_str(&text).context("definitions")
    }

    /// Returns the definition of the parent `name`.
    ///
    /// # Errors
    ///
    /// The definitions name a parent that they do not define.
    pub fn parent(&self, name: &str) -> Result<&ParentDef> {
        self.parents.iter().find(|p| p.name == name).with_context(|| format!("no parent {name} is defined"))
    }

    /// Returns the path of a program. `@static` is the benchmark's program without libc.
    ///
    /// # Errors
    ///
    /// The definitions name a program that they do not define.
    pub fn program(&self, name: &str, own: &Programs) -> Result<String> {
        match self.programs.get(name).map(String::as_str) {
            Some("@static") => Ok(own.first_instruction().to_string_lossy().into_owned()),
            Some(path) => Ok(path.to_owned()),
            None => anyhow::bail!("no program {name} is defined"),
        }
    }

    /// Returns the number of samples that one round of the first-instruction test takes of `method`
    /// in `parent`.
    pub fn first_insn_per_round(&self, parent: &str, method: &str, quick: bool) -> usize {
        let fits = |f: &&Fewer| f.parent == parent && f.method.as_deref().is_none_or(|m| m == method);
        self.first_insn.fewer.iter().find(fits).map_or(self.first_insn.per_round, |f| f.per_round).get(quick)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_definitions_are_consistent() {
        let d = Definitions::load(None).unwrap();
        let own = Programs::install().unwrap();
        let methods: Vec<_> = d.methods.iter().map(|m| m.name.as_str()).collect();
        for ratio in &d.ratios {
            for key in [&ratio.over, &ratio.under] {
                if key.suite == "snapshot" {
                    assert_eq!(key.program, "library", "{}", ratio.id);
                } else {
                    d.parent(&key.parent).unwrap();
                    d.program(&key.program, &own).unwrap();
                    assert!(methods.contains(&key.method.as_str()), "{}", ratio.id);
                }
            }
        }
        d.parent(&d.lifecycle.parent).unwrap();
        d.parent(&d.parallel.parent).unwrap();
    }

    #[test]
    fn a_bound_includes_its_own_value() {
        assert_eq!(Bound { max: Some(1.1), min: None }.met_by(1.1), Some(true));
        assert_eq!(Bound { max: None, min: Some(12.0) }.met_by(11.9), Some(false));
        assert_eq!(Bound::default().met_by(1.0), None);
    }
}
