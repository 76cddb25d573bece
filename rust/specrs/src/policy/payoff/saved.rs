//! What a router learned, as text with its version.

use super::calibration::Calibration;
use super::cost::Cost;
use super::request::Record;
use super::router::{Knobs, PayoffOptions, PayoffRouter};
use crate::error::{Error, ErrorKind, Result};

const TITLE: &str = "specrs payoff 2";

fn line(name: &str, first: f64, second: f64) -> String {
    format!("{name} {first} {second}\n")
}

impl PayoffRouter {
    /// What was learned about the cache, the forwards and the model drafter, as text with its version. Requests are left
    /// out.
    pub fn save(&self) -> String {
        let Knobs { acceptance, longest_model, explore } = self.options;
        let Record { hits, tries } = self.model;
        let mut text = format!("{TITLE}\nmodel {acceptance} {longest_model} {hits} {tries}\nexplore {explore}\n");
        for (name, cost) in [("forward", &self.forward), ("draft", &self.model_forward)] {
            for (rows, seconds) in cost.points() {
                text += &line(name, rows, seconds);
            }
        }
        for (name, calibration) in [("chain", &self.chain), ("tree", &self.tree)] {
            for (accepted, seen) in calibration.counts() {
                text += &line(name, accepted, seen);
            }
        }
        text
    }

    /// A router from what [`Self::save`] gave.
    ///
    /// # Errors
    /// If the text is of another version or damaged.
    pub fn load(text: &str) -> Result<Self> {
        let corrupt = |what: &str| Error::new(ErrorKind::Corrupt, format!("saved payoff router: {what}"));
        let mut lines = text.lines();
        let title = lines.next().unwrap_or_default();
        if title != TITLE {
            return Err(corrupt(&format!("first line is {title:?}, expected {TITLE:?}")));
        }
        let mut options = PayoffOptions::default();
        let mut model = Record::default();
        let mut tables: [Vec<(f64, f64)>; 4] = Default::default();
        for line in lines {
            let wrong = || corrupt(&format!("line {line:?} is not understood"));
            let number =
                |field: &str| field.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0).ok_or_else(wrong);
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["model", acceptance, longest, hits, tries] => {
                    options.model_acceptance = number(acceptance)?;
                    options.longest_model = longest.parse().map_err(|_| wrong())?;
                    model = Record { hits: number(hits)?, tries: number(tries)? };
                }
                ["explore", share] => options.explore = number(share)?,
                [name, first, second] => {
                    let table = ["forward", "draft", "chain", "tree"].iter().position(|known| *known == name);
                    tables[table.ok_or_else(wrong)?].push((number(first)?, number(second)?));
                }
                _ => return Err(wrong()),
            }
        }
        let mut router = Self::new(options).map_err(|error| corrupt(&error.to_string()))?;
        let cost = |points: &[(f64, f64)]| {
            let (rows, seconds): (Vec<f64>, Vec<f64>) = points.iter().copied().unzip();
            Cost::table(&rows, &seconds).map_err(|error| corrupt(&error.to_string()))
        };
        let calibration = |counts: &[(f64, f64)]| {
            Calibration::from_counts(counts).ok_or_else(|| corrupt(&format!("{} bins do not fit", counts.len())))
        };
        router.forward = cost(&tables[0])?;
        router.model_forward = cost(&tables[1])?;
        router.chain = calibration(&tables[2])?;
        router.tree = calibration(&tables[3])?;
        if model.hits > model.tries {
            return Err(corrupt(&format!("{} hits among {} tries", model.hits, model.tries)));
        }
        router.model = model;
        Ok(router)
    }
}
