//! What a router learned, as text with its version.

use super::calibration::Calibration;
use super::cost::{Cost, Guess};
use super::request::Record;
use super::router::{Knobs, PayoffOptions, PayoffRouter};
use crate::error::{Error, ErrorKind, Result};

const TITLE: &str = "specrs payoff 4";
const TABLES: [&str; 6] = ["forward-guess", "forward", "draft-guess", "draft", "chain", "tree"];

fn line(name: &str, first: f64, second: f64) -> String {
    format!("{name} {first} {second}\n")
}

impl PayoffRouter {
    /// What was learned about the cache, the forwards and the model drafter, as text with its version. Requests are left
    /// out.
    pub fn save(&self) -> String {
        let Knobs { acceptance, longest_model, explore } = self.options;
        let Record { hits, tries } = self.model;
        let (left, length) = (self.left, self.length);
        let model = format!("model {acceptance} {longest_model} {hits} {tries}");
        let new = line("new", self.new.hits, self.new.tries);
        let mut text = format!("{TITLE}\n{model}\nexplore {explore}\nleft {left}\nlength {length}\n{new}");
        for (name, cost) in [("forward", &self.forward), ("draft", &self.model_forward)] {
            let Guess { base, slope } = cost.guess();
            text += &line(&format!("{name}-guess"), base, slope);
            for &(rows, seconds) in cost.timed() {
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
        let (mut left, mut length, mut new) = (None, None, None);
        let mut tables: [Vec<(f64, f64)>; TABLES.len()] = Default::default();
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
                ["left", share] => left = Some(number(share)?),
                ["length", tokens] => length = Some(number(tokens)?),
                ["new", hits, tries] => new = Some(Record { hits: number(hits)?, tries: number(tries)? }),
                [name, first, second] => {
                    let table = TABLES.iter().position(|known| *known == name);
                    tables[table.ok_or_else(wrong)?].push((number(first)?, number(second)?));
                }
                _ => return Err(wrong()),
            }
        }
        let mut router = Self::new(options).map_err(|error| corrupt(&error.to_string()))?;
        let [forward_guess, forward, draft_guess, draft, chain, tree] = tables;
        let cost = |guess: &[(f64, f64)], timed| match guess {
            &[(base, slope)] => Cost::from_parts(Guess { base, slope }, timed)
                .ok_or_else(|| corrupt("costs are not positive and rising")),
            _ => Err(corrupt(&format!("{} guesses of one cost", guess.len()))),
        };
        let calibration = |counts: &[(f64, f64)]| {
            Calibration::from_counts(counts).ok_or_else(|| corrupt(&format!("{} bins do not fit", counts.len())))
        };
        router.forward = cost(&forward_guess, forward)?;
        router.model_forward = cost(&draft_guess, draft)?;
        router.chain = calibration(&chain)?;
        router.tree = calibration(&tree)?;
        if model.hits > model.tries {
            return Err(corrupt(&format!("{} hits among {} tries", model.hits, model.tries)));
        }
        router.model = model;
        router.length = length.ok_or_else(|| corrupt("no length of a text"))?;
        router.new = new.ok_or_else(|| corrupt("no comparison of the two drafters"))?;
        router.left =
            left.filter(|share| *share <= 1.0).ok_or_else(|| corrupt("no share of tokens that the cache leaves"))?;
        Ok(router)
    }
}
