//! Messages between target and drafter process (`specrs::outcome::link`): class `DrafterChannel`.

use std::fs::File;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, PyUntypedArrayMethods};
use pyo3::prelude::*;
use specrs::outcome::link::{Answer, Channel, Message, Question, Reply, Ring, Start, bytes_of, wire};

use crate::arrays::flat_of;
use crate::enter::{enter, invalid};

/// Longest sleep between two looks at Python's signals.
const NAP: Duration = Duration::from_millis(500);

type QuestionParts<'py> = (u64, u64, u64, i64, u64, PyReadonlyArray1<'py, u32>);
type ReplyParts<'py> = (u64, u64, i64, i64, u64, PyReadonlyArray1<'py, u32>, Option<PyReadonlyArray2<'py, f32>>);

/// One side's end of the messages between target and drafter.
#[pyclass(frozen, module = "specrs._core")]
struct DrafterChannel {
    channel: Channel,
}

fn own(py: Python<'_>, descriptor: RawFd) -> PyResult<OwnedFd> {
    if descriptor < 0 {
        return Err(invalid(py, &format!("a file descriptor is not negative, got {descriptor}")));
    }
    // SAFETY: only borrowed for the call that duplicates it, which fails if it is not open.
    #[allow(unsafe_code, reason = "a descriptor that Python holds")]
    let held = unsafe { BorrowedFd::borrow_raw(descriptor) };
    enter(py, || Ok(held.try_clone_to_owned()?))
}

fn slice<'a>(py: Python<'_>, array: &'a PyReadonlyArray1<'_, u32>) -> PyResult<&'a [u32]> {
    array.as_slice().map_err(|_| invalid(py, "token arrays must be contiguous"))
}

fn duration(py: Python<'_>, seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds).map_err(|e| invalid(py, &format!("seconds are {seconds}: {e}")))
}

#[pymethods]
impl DrafterChannel {
    #[new]
    fn new(py: Python<'_>, bell: RawFd, inbox: RawFd, outbox: RawFd) -> PyResult<Self> {
        let (bell, inbox, outbox) = (own(py, bell)?, own(py, inbox)?, own(py, outbox)?);
        let channel = enter(py, || {
            Ok(Channel::new(Ring::new(&File::from(inbox))?, Ring::new(&File::from(outbox))?, UnixStream::from(bell)))
        })?;
        Ok(Self { channel })
    }

    fn has_message(&self) -> bool {
        self.channel.has_message()
    }

    #[pyo3(signature = (request, tokens, *, capacity, temperature, top_k, top_p, min_p, seed, sample, repeatable))]
    #[allow(clippy::too_many_arguments, reason = "a request's settings")]
    fn start(
        &self,
        py: Python<'_>,
        request: u64,
        tokens: PyReadonlyArray1<'_, u32>,
        capacity: u64,
        temperature: f64,
        top_k: u64,
        top_p: f64,
        min_p: f64,
        seed: u64,
        sample: u64,
        repeatable: bool,
    ) -> PyResult<()> {
        let tokens = slice(py, &tokens)?.to_vec();
        let text = Start { request, capacity, top_k, seed, sample, repeatable, temperature, top_p, min_p, tokens };
        enter(py, || self.channel.send(&[&wire::start(&text)]))
    }

    fn finish(&self, py: Python<'_>, request: u64) -> PyResult<()> {
        enter(py, || self.channel.send(&[&wire::finish(request)]))
    }

    fn speculate(&self, py: Python<'_>, number: u64, asked: f64, questions: Vec<QuestionParts<'_>>) -> PyResult<()> {
        let questions = questions
            .iter()
            .map(|&(request, generation, keep, accepted, budget, ref new)| {
                let new = slice(py, new)?.to_vec();
                Ok(Question { request, generation, keep, accepted, budget, new })
            })
            .collect::<PyResult<Vec<_>>>()?;
        enter(py, || self.channel.send(&[&wire::speculate(number, asked, &questions)]))
    }

    fn answer(&self, py: Python<'_>, number: u64, seconds: [f64; 3], replies: Vec<ReplyParts<'_>>) -> PyResult<()> {
        let mut made = Answer { round: number, seconds, replies: Vec::with_capacity(replies.len()) };
        let mut rows = Vec::with_capacity(replies.len());
        let mut widths = Vec::with_capacity(replies.len());
        for (request, generation, accepted, bonus, origin, tokens, laws) in &replies {
            let tokens = slice(py, tokens)?.to_vec();
            let (width, law) = match laws {
                Some(laws) if laws.shape()[0] != tokens.len() => {
                    let found = laws.shape()[0];
                    return Err(invalid(py, &format!("laws has {found} rows, expected {}", tokens.len())));
                }
                Some(laws) => (laws.shape()[1], flat_of(py, "laws", laws)?),
                None => (0, &[][..]),
            };
            let (request, generation, accepted, bonus, origin) = (*request, *generation, *accepted, *bonus, *origin);
            made.replies.push(Reply { request, generation, accepted, bonus, origin, tokens, laws: Vec::new() });
            widths.push(width);
            rows.push(law);
        }
        enter(py, || {
            let head = wire::answer(&made, &widths);
            let parts: Vec<_> = std::iter::once(&head[..]).chain(rows.iter().map(|row| bytes_of(row))).collect();
            self.channel.send(&parts)
        })
    }

    fn fail(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        enter(py, || self.channel.send(&[&wire::failure(reason)]))
    }

    /// (kind, value) of the next message, or None after `timeout` seconds.
    #[pyo3(signature = (timeout = None, busy_seconds = 0.0))]
    fn receive<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<f64>,
        busy_seconds: f64,
    ) -> PyResult<Option<(&'static str, Bound<'py, PyAny>)>> {
        let timeout = timeout.map(|seconds| duration(py, seconds)).transpose()?;
        let busy = duration(py, busy_seconds)?;
        let started = Instant::now();
        let mut there = enter(py, || Ok(self.channel.watch(timeout.map_or(busy, |t| busy.min(t)))))?;
        while !there {
            let left = timeout.map_or(NAP, |t| t.saturating_sub(started.elapsed()));
            if left.is_zero() {
                return Ok(None);
            }
            there = enter(py, || self.channel.sleep(left.min(NAP)))?;
            py.check_signals()?;
        }
        let message = enter(py, || self.channel.receive())?;
        message.map(|message| value_of(py, message)).transpose()
    }
}

fn value_of(py: Python<'_>, message: Message) -> PyResult<(&'static str, Bound<'_, PyAny>)> {
    Ok(match message {
        Message::Start(text) => {
            let reals = (text.temperature, text.top_k, text.top_p, text.min_p);
            let rest = (text.seed, text.sample, text.repeatable);
            (
                "start",
                (text.request, text.tokens.into_pyarray(py), text.capacity, reals, rest).into_pyobject(py)?.into_any(),
            )
        }
        Message::Finish(request) => ("finish", request.into_pyobject(py)?.into_any()),
        Message::Speculate { round, asked, questions } => {
            let questions: Vec<_> = questions
                .into_iter()
                .map(|q| (q.request, q.generation, q.keep, q.accepted, q.budget, q.new.into_pyarray(py)))
                .collect();
            ("speculate", (round, asked, questions).into_pyobject(py)?.into_any())
        }
        Message::Answer(answer) => {
            let replies = answer.replies.into_iter().map(|reply| reply_of(py, reply)).collect::<PyResult<Vec<_>>>()?;
            ("answer", (answer.round, answer.seconds, replies).into_pyobject(py)?.into_any())
        }
        Message::Failure(reason) => ("failure", reason.into_pyobject(py)?.into_any()),
    })
}

type ReplyArrays<'py> = (u64, u64, i64, i64, u64, Bound<'py, PyArray1<u32>>, Option<Bound<'py, PyArray2<f32>>>);

fn reply_of(py: Python<'_>, reply: Reply) -> PyResult<ReplyArrays<'_>> {
    let laws = if reply.laws.is_empty() {
        None
    } else {
        let shape = (reply.tokens.len(), reply.laws.len() / reply.tokens.len());
        let laws = Array2::from_shape_vec(shape, reply.laws).map_err(|e| invalid(py, &e.to_string()))?;
        Some(laws.into_pyarray(py))
    };
    let tokens = reply.tokens.into_pyarray(py);
    Ok((reply.request, reply.generation, reply.accepted, reply.bonus, reply.origin, tokens, laws))
}

pub fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("DRAFTER_MESSAGE_VERSION", wire::VERSION)?;
    m.add_class::<DrafterChannel>()
}
