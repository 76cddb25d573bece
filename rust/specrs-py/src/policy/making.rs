//! Makes a policy of its name and options.

use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use specrs::policy::length::{Convention, Shrinks};
use specrs::policy::{self, Calibration, Price, Rule};

use super::known::{CostTable, Learned};
use crate::enter::{enter, invalid};

/// Reads the options that a policy's constructor needs; Python has checked their names and filled in defaults.
struct Options<'py> {
    py: Python<'py>,
    name: String,
    values: Bound<'py, PyDict>,
}

impl<'py> Options<'py> {
    fn get<T: for<'a> FromPyObject<'a, 'py>>(&self, option: &str) -> PyResult<T> {
        let value = self.values.get_item(option)?;
        value.as_ref().and_then(|value| value.extract().ok()).ok_or_else(|| {
            let found = value.map_or_else(|| "nothing".to_owned(), |value| value.to_string());
            invalid(self.py, &format!("option {option} of policy '{}' cannot be {found}", self.name))
        })
    }

    fn word<T: Copy>(&self, option: &str, known: &[(&str, T)]) -> PyResult<T> {
        let value: String = self.get(option)?;
        known.iter().find(|(word, _)| *word == value).map(|(_, meaning)| *meaning).ok_or_else(|| {
            let words: Vec<String> = known.iter().map(|(word, _)| format!("'{word}'")).collect();
            let message =
                format!("option {option} of policy '{}' must be {}, got '{value}'", self.name, words.join(" or "));
            invalid(self.py, &message)
        })
    }
}

/// The table, which the policy cannot do without.
pub fn table_of(py: Python<'_>, name: &str, cost: Option<&CostTable>) -> PyResult<Arc<Mutex<policy::CostTable>>> {
    cost.map(|cost| Arc::clone(&cost.table)).ok_or_else(|| invalid(py, &format!("policy '{name}' needs a cost table")))
}

/// Makes the policy called `name`; `stepwise` says that the drafter asks before each further token.
pub fn make(
    py: Python<'_>,
    name: &str,
    options: Bound<'_, PyDict>,
    stepwise: bool,
    cost: Option<&CostTable>,
    learned: Option<&Learned>,
) -> PyResult<Box<dyn policy::LengthPolicy>> {
    let options = Options { py, name: name.to_owned(), values: options };
    let table = || table_of(py, name, cost);
    let known = || match learned {
        Some(learned) => Arc::clone(&learned.learned),
        None => Arc::new(Mutex::new(policy::Learned::new(Calibration::bins()))),
    };
    let stopping = |rule: Rule, most: usize| -> PyResult<Box<dyn policy::LengthPolicy>> {
        Ok(Box::new(enter(py, || policy::Stopping::new(rule, most, stepwise))?))
    };
    Ok(match name {
        "fixed" => Box::new(policy::Fixed { tokens: options.get("tokens")? }),
        "libra" | "libra_causal" => {
            let options = policy::LibraOptions {
                max_tokens: options.get("max_tokens")?,
                hysteresis: options.get("hysteresis")?,
                probe_every: options.get("probe_every")?,
                price: options.word("price", &[("round", Price::Round), ("run", Price::Run)])?,
                stepwise,
                causal: name == "libra_causal",
            };
            let (table, known) = (table()?, known());
            Box::new(enter(py, || policy::Libra::new(options, table, known))?)
        }
        "libra_alpha" => {
            let alpha = options.get("alpha")?;
            enter(py, || policy::length::libra_alpha(&[], alpha, Convention::Floor, Shrinks::Once).map(|_| ()))?;
            Box::new(policy::LibraAlpha {
                max_tokens: options.get("max_tokens")?,
                alpha,
                convention: options
                    .word("convention", &[("strict", Convention::Strict), ("floor", Convention::Floor)])?,
                shrinks: options.word("shrinks", &[("once", Shrinks::Once), ("fixpoint", Shrinks::Fixpoint)])?,
            })
        }
        "hf_heuristic" | "hf_heuristic_transient" => Box::new(policy::HfHeuristic::new(
            options.get("tokens")?,
            options.get("max_tokens")?,
            (name == "hf_heuristic").then(known),
        )),
        "hf_confidence" => stopping(
            Rule::HfConfidence { threshold: options.get("threshold")?, adapts: options.get("adapts")? },
            options.get("max_tokens")?,
        )?,
        "svip" => stopping(Rule::Svip { threshold: options.get("threshold")? }, options.get("max_tokens")?)?,
        "adaedl" => stopping(Rule::AdaEdl { threshold: options.get("threshold")? }, options.get("max_tokens")?)?,
        "specdecpp" => stopping(
            Rule::SpecDecPp { threshold: options.get("threshold")?, least: options.get("min_tokens")? },
            options.get("max_tokens")?,
        )?,
        "disco" => stopping(Rule::Disco { threshold: options.get("threshold")? }, options.get("max_tokens")?)?,
        "dloop" => {
            let (block, loops): (usize, usize) = (options.get("block")?, options.get("max_loops")?);
            stopping(Rule::DLoop { gate: options.get("gate")?, block }, block.saturating_mul(loops))?
        }
        "ema_tiers" => {
            let (tiers, weight) = (options.get("tiers")?, options.get("weight")?);
            let (up, down) = (options.get("up")?, options.get("down")?);
            Box::new(enter(py, || policy::EmaTiers::new(tiers, weight, up, down))?)
        }
        "goodput" => Box::new(policy::Goodput::new(options.get("max_tokens")?, table()?, known(), stepwise)),
        "ucb" => {
            let (arms, discount, compat) = (options.get("arms")?, options.get("discount")?, options.get("compat")?);
            Box::new(enter(py, || policy::Ucb::new(arms, discount, compat))?)
        }
        _ => return Err(invalid(py, &format!("no policy is called '{name}'"))),
    })
}
