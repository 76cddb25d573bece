//! The messages: versioned words of 64 bits, then the laws as they lie in memory.
//!
//! Every message begins with (magic, version, kind, number). A reader that finds another magic or version refuses the
//! message by an error that names both. Reals travel as their bits.

use crate::error::{Error, ErrorKind, Result};

/// First word of every message.
pub const MAGIC: u64 = 0x5353_4430;
/// Second word of every message.
pub const VERSION: u64 = 2;

const START: u64 = 1;
const FINISH: u64 = 2;
const SPECULATE: u64 = 3;
const ANSWER: u64 = 4;
const FAILURE: u64 = 5;

/// A new request: its committed tokens and how it wants tokens drawn.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// The request.
    pub request: u64,
    /// Tokens to make room for.
    pub capacity: u64,
    /// Draw among so many most probable ids; 0 is off.
    pub top_k: u64,
    /// Key of the draft coins.
    pub seed: u64,
    /// Second key of the draft coins.
    pub sample: u64,
    /// Whether no draft may depend on what was ready when.
    pub repeatable: bool,
    /// Temperature.
    pub temperature: f64,
    /// Draw among the most probable ids of this mass; 1 is off.
    pub top_p: f64,
    /// Draw among ids of this share of the most probable one's probability; 0 is off.
    pub min_p: f64,
    /// The prompt.
    pub tokens: Vec<u32>,
}

/// One request's part of a question: how its last round ended, and how much to draft now.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// The request.
    pub request: u64,
    /// Counts the request's rounds.
    pub generation: u64,
    /// Tokens of the drafter's copy that still stand.
    pub keep: u64,
    /// Drafts accepted, or -1 where there were none of the drafter's.
    pub accepted: i64,
    /// Most tokens to draft.
    pub budget: u64,
    /// Committed tokens behind those that stand.
    pub new: Vec<u32>,
}

/// One request's part of an answer, with the question's outcome echoed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reply {
    /// The request.
    pub request: u64,
    /// As in the question.
    pub generation: u64,
    /// As in the question.
    pub accepted: i64,
    /// Last committed token, or -1.
    pub bonus: i64,
    /// Where the draft came from.
    pub origin: u64,
    /// The draft.
    pub tokens: Vec<u32>,
    /// The laws that it was drawn from, row by row; empty where it was chosen with certainty.
    pub laws: Vec<f32>,
}

/// What the drafter answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// The question's number.
    pub round: u64,
    /// Seconds: making the answer, drafting ahead before, waiting for a forward of it to end.
    pub seconds: [f64; 3],
    /// By request.
    pub replies: Vec<Reply>,
}

/// A message.
#[derive(Clone, Debug, PartialEq)]
pub enum Message {
    /// A request begins.
    Start(Start),
    /// A request is over.
    Finish(u64),
    /// A question.
    Speculate {
        /// Its number.
        round: u64,
        /// When it was asked, in seconds of the machine's clock.
        asked: f64,
        /// By request.
        questions: Vec<Question>,
    },
    /// An answer.
    Answer(Answer),
    /// The drafter gives up.
    Failure(String),
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u64, number: u64) -> Self {
        let mut made = Self(Vec::with_capacity(256));
        made.words(&[MAGIC, VERSION, kind, number]);
        made
    }

    fn words(&mut self, words: &[u64]) {
        for word in words {
            self.0.extend_from_slice(&word.to_ne_bytes());
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        for token in tokens {
            self.0.extend_from_slice(&token.to_ne_bytes());
        }
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

/// Encodes the beginning of a request.
pub fn start(text: &Start) -> Vec<u8> {
    let mut made = Writer::new(START, text.request);
    made.words(&[text.capacity, text.top_k, text.seed, text.sample, u64::from(text.repeatable)]);
    made.words(&[text.temperature.to_bits(), text.top_p.to_bits(), text.min_p.to_bits(), text.tokens.len() as u64]);
    made.tokens(&text.tokens);
    made.0
}

/// Encodes the end of a request.
pub fn finish(request: u64) -> Vec<u8> {
    Writer::new(FINISH, request).0
}

/// Encodes a question.
pub fn speculate(round: u64, asked: f64, questions: &[Question]) -> Vec<u8> {
    let mut made = Writer::new(SPECULATE, round);
    made.words(&[asked.to_bits(), questions.len() as u64]);
    for asked in questions {
        made.words(&[asked.request, asked.generation, asked.keep, asked.accepted as u64, asked.budget]);
        made.words(&[asked.new.len() as u64]);
        made.tokens(&asked.new);
    }
    made.0
}

/// Encodes an answer but for its laws, whose bytes follow reply by reply; `widths` says how long their rows are.
pub fn answer(made: &Answer, widths: &[usize]) -> Vec<u8> {
    let mut words = Writer::new(ANSWER, made.round);
    words.words(&made.seconds.map(f64::to_bits));
    words.words(&[made.replies.len() as u64]);
    for (reply, &width) in made.replies.iter().zip(widths) {
        words.words(&[reply.request, reply.generation, reply.accepted as u64, reply.bonus as u64, reply.origin]);
        words.words(&[reply.tokens.len() as u64, width as u64]);
        words.tokens(&reply.tokens);
    }
    words.0
}

/// Encodes that the drafter gives up.
pub fn failure(reason: &str) -> Vec<u8> {
    let mut made = Writer::new(FAILURE, reason.len() as u64);
    made.0.extend_from_slice(reason.as_bytes());
    made.0
}

struct Reader<'a> {
    data: &'a [u8],
    size: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.data.split_at_checked(count) else {
            return Err(Error::new(
                ErrorKind::Lost,
                format!("a message of {} bytes ends early, expected {count} bytes more", self.size),
            ));
        };
        self.data = rest;
        Ok(taken)
    }

    fn words<const N: usize>(&mut self) -> Result<[u64; N]> {
        let taken = self.bytes(8 * N)?;
        let mut words = [0; N];
        for (word, bytes) in words.iter_mut().zip(taken.chunks_exact(8)) {
            *word = u64::from_ne_bytes(bytes.try_into().unwrap_or_default());
        }
        Ok(words)
    }

    fn count(&mut self) -> Result<usize> {
        Ok(self.words::<1>()?[0] as usize)
    }

    fn tokens(&mut self, count: usize) -> Result<Vec<u32>> {
        let taken = self.bytes(count.saturating_mul(4).checked_next_multiple_of(8).unwrap_or(usize::MAX))?;
        let words = taken.chunks_exact(4).take(count);
        Ok(words.map(|bytes| u32::from_ne_bytes(bytes.try_into().unwrap_or_default())).collect())
    }

    fn laws(&mut self, entries: usize) -> Result<Vec<f32>> {
        let taken = self.bytes(entries.saturating_mul(4))?;
        Ok(taken.chunks_exact(4).map(|bytes| f32::from_ne_bytes(bytes.try_into().unwrap_or_default())).collect())
    }
}

impl Message {
    /// Decodes a message.
    ///
    /// # Errors
    /// Of kind `Lost` if it is foreign, of another version, or cut off.
    pub fn decode(data: &[u8]) -> Result<Self> {
        let mut reader = Reader { data, size: data.len() };
        let [magic, version, kind, number] = reader.words()?;
        if magic != MAGIC || version != VERSION {
            return Err(Error::new(
                ErrorKind::Lost,
                format!(
                    "a message has magic {magic:#x} and version {version}, expected {MAGIC:#x} and {VERSION}: target and \
                     drafter must run the same specrs"
                ),
            ));
        }
        match kind {
            START => Ok(Self::Start(read_start(&mut reader, number)?)),
            FINISH => Ok(Self::Finish(number)),
            SPECULATE => {
                let [asked, count] = reader.words()?;
                let questions = (0..count).map(|_| read_question(&mut reader)).collect::<Result<_>>()?;
                Ok(Self::Speculate { round: number, asked: f64::from_bits(asked), questions })
            }
            ANSWER => Ok(Self::Answer(read_answer(&mut reader, number)?)),
            FAILURE => Ok(Self::Failure(String::from_utf8_lossy(reader.bytes(number as usize)?).into_owned())),
            other => {
                Err(Error::new(ErrorKind::Lost, format!("a message is of kind {other}, expected {START} to {FAILURE}")))
            }
        }
    }
}

fn read_start(reader: &mut Reader<'_>, request: u64) -> Result<Start> {
    let [capacity, top_k, seed, sample, repeatable] = reader.words()?;
    let [temperature, top_p, min_p] = reader.words()?.map(f64::from_bits);
    let count = reader.count()?;
    let tokens = reader.tokens(count)?;
    let repeatable = repeatable != 0;
    Ok(Start { request, capacity, top_k, seed, sample, repeatable, temperature, top_p, min_p, tokens })
}

fn read_question(reader: &mut Reader<'_>) -> Result<Question> {
    let [request, generation, keep, accepted, budget, count] = reader.words()?;
    let new = reader.tokens(count as usize)?;
    Ok(Question { request, generation, keep, accepted: accepted as i64, budget, new })
}

fn read_answer(reader: &mut Reader<'_>, round: u64) -> Result<Answer> {
    let seconds = reader.words::<3>()?.map(f64::from_bits);
    let count = reader.count()?;
    let mut replies = Vec::new();
    let mut widths = Vec::new();
    for _ in 0..count {
        let [request, generation, accepted, bonus, origin, size, width] = reader.words()?;
        let tokens = reader.tokens(size as usize)?;
        widths.push(width as usize);
        let (accepted, bonus) = (accepted as i64, bonus as i64);
        replies.push(Reply { request, generation, accepted, bonus, origin, tokens, laws: Vec::new() });
    }
    for (reply, width) in replies.iter_mut().zip(widths) {
        reply.laws = reader.laws(reply.tokens.len().saturating_mul(width))?;
    }
    Ok(Answer { round, seconds, replies })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test stops at the first error")]
mod tests {
    use super::super::ring::bytes_of;
    use super::*;

    fn question() -> Question {
        Question { request: 3, generation: 1, keep: 5, accepted: -1, budget: 4, new: vec![7, 8, 9] }
    }

    #[test]
    fn every_message_arrives_as_it_was() {
        let text = Start {
            request: 2,
            seed: u64::MAX,
            temperature: 0.7,
            repeatable: true,
            tokens: vec![1, 2, 3],
            ..Start::default()
        };
        assert_eq!(Message::decode(&start(&text)).unwrap(), Message::Start(text));
        assert_eq!(Message::decode(&finish(9)).unwrap(), Message::Finish(9));
        let questions = vec![question(), Question { new: vec![], accepted: 2, ..question() }];
        let data = speculate(4, 1.5, &questions);
        assert_eq!(Message::decode(&data).unwrap(), Message::Speculate { round: 4, asked: 1.5, questions });
        assert_eq!(Message::decode(&failure("out of cheese")).unwrap(), Message::Failure("out of cheese".into()));
        let laws = vec![0.25, 0.75, 0.5, 0.5, 1.0, 0.0];
        let one = Reply { request: 1, bonus: -1, accepted: -1, tokens: vec![4, 5, 6], laws, ..Reply::default() };
        let two = Reply { request: 2, tokens: vec![8], origin: 3, ..Reply::default() };
        let made = Answer { round: 4, seconds: [0.5, 0.25, 0.125], replies: vec![one, two] };
        let mut data = answer(&made, &[2, 0]);
        data.extend_from_slice(bytes_of(&made.replies[0].laws));
        assert_eq!(Message::decode(&data).unwrap(), Message::Answer(made));
    }

    #[test]
    fn foreign_and_cut_messages_are_refused() {
        let data = speculate(4, 1.5, &[question()]);
        for cut in 0..data.len() {
            let error = Message::decode(&data[..cut]).unwrap_err();
            assert!(error.kind() == ErrorKind::Lost && error.to_string().contains("ends early"), "{error}");
        }
        for (word, expected) in [(0, "magic 0x7"), (1, "version 7, expected"), (2, "kind 7")] {
            let mut other = data.clone();
            other[8 * word..8 * word + 8].copy_from_slice(&7_u64.to_ne_bytes());
            let text = Message::decode(&other).unwrap_err().to_string();
            assert!(text.contains(if word == 1 { "version 7" } else { expected }), "{text}");
        }
        // A length that no message has neither allocates nor overflows.
        let mut other = data;
        let at = other.len() - 24;
        other[at..at + 8].copy_from_slice(&u64::MAX.to_ne_bytes());
        assert_eq!(Message::decode(&other).unwrap_err().kind(), ErrorKind::Lost);
    }
}
