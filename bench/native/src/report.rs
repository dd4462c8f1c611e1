// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writes the JSON file, and prints the tables on the terminal.

use std::io::Write;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;

use crate::Result;
use crate::definitions::{Bound, Definitions, RatioDef};
use crate::machine::Machine;
use crate::samples::{Key, Samples, quantile, ratio, sorted};

#[derive(Debug, Serialize)]
pub struct Report {
    pub suite: String,
    pub quick: bool,
    pub machine: Machine,
    /// The ratios for which this run has samples of both series.
    pub ratios: Vec<Ratio>,
    /// The ids of ratios without samples for one of their series.
    pub missing: Vec<String>,
    pub rows: Vec<Row>,
}

#[derive(Debug, Serialize)]
pub struct Ratio {
    pub id: String,
    pub value: f64,
    pub low: f64,
    pub high: f64,
    pub meaning: String,
    pub bound: Bound,
    pub met: Option<bool>,
}

#[derive(Debug, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub key: Key,
    pub unit: &'static str,
    pub n: usize,
    pub min: f64,
    pub median: f64,
    pub mean: f64,
    pub p99: f64,
    #[serde(rename = "p99.9")]
    pub p99_9: f64,
}

impl Report {
    /// Computes the rows, and the ratios whose id begins with `suite`.
    pub fn new(suite: &str, quick: bool, definitions: &Definitions, samples: &Samples) -> Self {
        let mut rows: Vec<Row> = samples.0.iter().map(|(key, rounds)| row(key, &sorted(rounds))).collect();
        rows.sort_by_key(|r| {
            let parent = definitions.parents.iter().position(|p| p.name == r.key.parent);
            let method = definitions.methods.iter().position(|m| m.name == r.key.method);
            let filtered = r.key.filter != "none";
            (r.key.suite.clone(), filtered, parent, r.key.program.clone(), r.key.search, method)
        });
        let mut ratios = Vec::new();
        let mut missing = Vec::new();
        for def in definitions.ratios.iter().filter(|d| d.id.split('.').next() == Some(suite)) {
            match computed(def, samples) {
                Some(ratio) => ratios.push(ratio),
                None => missing.push(def.id.clone()),
            }
        }
        Self { suite: suite.to_owned(), quick, machine: Machine::here(), ratios, missing, rows }
    }

    /// Writes the JSON file. Creates its directory if necessary.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        let mut text = serde_json::to_string_pretty(self)?;
        text.push('\n');
        std::fs::write(path, text).with_context(|| path.display().to_string())
    }

    /// Returns whether every ratio is within its bounds. A missing ratio is not.
    pub fn met(&self) -> bool {
        self.missing.is_empty() && self.ratios.iter().all(|r| r.met != Some(false))
    }

    /// Prints the tables.
    ///
    /// # Errors
    ///
    /// Writing to `out` fails.
    pub fn print(&self, out: &mut impl Write) -> Result<()> {
        let m = &self.machine;
        writeln!(out, "{} · {} cores · {} · {} · {}", m.cpu, m.cores, m.kernel, m.libc, m.mem)?;
        self.print_rows(out)?;
        writeln!(out, "\n{:<44} {:>8}  {:<17} {:<8}", "ratio", "value", "95 % interval", "bound")?;
        for r in &self.ratios {
            let interval = format!("{:.3} .. {:.3}", r.low, r.high);
            writeln!(out, "{:<44} {:>8.3}  {interval:<17} {:<8} {}", r.id, r.value, bound(r.bound), verdict(r.met))?;
        }
        for id in &self.missing {
            writeln!(out, "{id:<44} {:>8}", "missing")?;
        }
        if self.quick {
            writeln!(out, "quick run: few samples, wide intervals")?;
        }
        Ok(())
    }

    fn print_rows(&self, out: &mut impl Write) -> Result<()> {
        let mut last = None;
        for r in &self.rows {
            let k = &r.key;
            let title = format!("{}, filter {}, {}", k.suite, k.filter, r.unit);
            if last.as_ref() != Some(&title) {
                writeln!(
                    out,
                    "\n{title}\n{:<13} {:<8} {:<7} {:<12} {:>6} {:>10} {:>10} {:>10} {:>10} {:>10}",
                    "parent", "program", "search", "method", "n", "min", "median", "mean", "p99", "p99.9"
                )?;
            }
            last = Some(title);
            writeln!(
                out,
                "{:<13} {:<8} {:<7} {:<12} {:>6} {:>10.1} {:>10.1} {:>10.1} {:>10.1} {:>10.1}",
                k.parent,
                k.program,
                if k.search { "PATH" } else { "-" },
                k.method,
                r.n,
                r.min,
                r.median,
                r.mean,
                r.p99,
                r.p99_9
            )?;
        }
        Ok(())
    }
}

fn row(key: &Key, sorted: &[f64]) -> Row {
    Row {
        key: key.clone(),
        unit: match key.suite.as_str() {
            "parallel" => "spawns/s",
            "busy_share" => "% of all CPUs",
            _ => "us",
        },
        n: sorted.len(),
        min: quantile(sorted, 0.0),
        median: quantile(sorted, 0.5),
        mean: sorted.iter().sum::<f64>() / sorted.len() as f64,
        p99: quantile(sorted, 0.99),
        p99_9: quantile(sorted, 0.999),
    }
}

fn computed(def: &RatioDef, samples: &Samples) -> Option<Ratio> {
    let found = ratio(samples.0.get(&def.over)?, samples.0.get(&def.under)?, def.statistic)?;
    Some(Ratio {
        id: def.id.clone(),
        value: found.value,
        low: found.low,
        high: found.high,
        meaning: def.meaning.clone(),
        bound: def.bound,
        met: def.bound.met_by(found.value),
    })
}

fn bound(bound: Bound) -> String {
    match (bound.max, bound.min) {
        (Some(max), _) => format!("≤ {max:.2}"),
        (None, Some(min)) => format!("≥ {min:.2}"),
        (None, None) => "-".to_owned(),
    }
}

fn verdict(met: Option<bool>) -> &'static str {
    match met {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "",
    }
}
