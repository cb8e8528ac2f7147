//! The task that answers the platform's questions, where the owner of the box allows them.
//!
//! A question is a file of the platform under the name of this box's inbox, which no other box knows. An answer goes
//! into the inbox. Without a question that it answers, the box sends nothing but the request for the file.

use std::time::{Duration, Instant};

use aws_lc_rs::digest::{SHA256, digest};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use ledge_base::backoff::random;
use ledge_base::clock;
use ledge_egress::{Egress, HttpAnswer, HttpClient, HttpError, UploadClient};
use ledge_part::findings::FindingsSource;
use ledge_service::audit_event::{AuditEvent, AuditSink};
use ledge_service::hint::HintSignal;
use ledge_service::off_thread::blocking;

use crate::certificates::{CertificateChain, CertificateError, private_key};
use crate::diagnosis;
use crate::folder::{FolderError, Membership, MembershipFolder, Standing};
use crate::question::{AnsweredQuestion, QUESTION_BYTES_MAX, Question, QuestionJudge, QuestionKind, QuestionRefusal};
use crate::request::RequestError;

/// The pause between two looks for a question, without a hint.
const LOOK_PAUSE: Duration = Duration::from_mins(1);

/// The least pause between two looks: hints come from a broker, which may repeat them.
const LOOK_PAUSE_MIN: Duration = Duration::from_secs(2);

/// The longest pause after failures.
const FAILURE_PAUSE_MAX: Duration = Duration::from_mins(10);

/// The least time between two answers.
const ANSWER_PAUSE_MS: u64 = 60_000;

/// The refused questions that are recorded within [`REFUSALS_PERIOD`].
const REFUSALS_MAX: u32 = 10;
const REFUSALS_PERIOD: Duration = Duration::from_hours(1);

/// Answers the questions of the platform.
pub struct Responder {
    pub folder: MembershipFolder,
    pub egress: Egress,
    pub audit: AuditSink,
    pub findings: FindingsSource,
    /// The platform's hints, where there are any.
    pub hints: HintSignal,
    /// The questions that the owner allows.
    pub allowed: Vec<QuestionKind>,
    pub refusals: Refusals,
}

/// The reason why no question can be looked for or answered.
#[derive(Debug, thiserror::Error)]
enum ResponderError {
    #[error(transparent)]
    Folder(#[from] FolderError),
    #[error(transparent)]
    Answer(#[from] RequestError),
    #[error("the platform cannot be asked for questions: {0}")]
    Http(#[from] HttpError),
    #[error("the platform answers with status {0}")]
    Status(u16),
    #[error("the certificate of this box cannot be read: {0}")]
    Own(#[from] CertificateError),
    #[error("the audit log cannot record it")]
    Unrecorded,
}

/// The refused questions, so that each is reported once.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The SHA-256 of the last one.
    last: Option<Vec<u8>>,
    /// The start of the period, and the refusals in it.
    period: Option<(Instant, u32)>,
    /// Set while the question that was answered last is known to have been removed.
    was_gone: bool,
}

impl Refusals {
    /// True if the refusal of a file is to be reported: not the one of the last look again, and not too many.
    pub fn is_new(&mut self, file: &[u8], now: Instant) -> bool {
        let file = digest(&SHA256, file).as_ref().to_vec();
        if self.last.as_ref() == Some(&file) {
            return false;
        }
        self.last = Some(file);
        let (start, count) = match self.period {
            Some((start, count)) if now.saturating_duration_since(start) < REFUSALS_PERIOD => (start, count),
            _ => (now, 0),
        };
        self.period = Some((start, count.saturating_add(1)));
        count < REFUSALS_MAX
    }
}

impl Responder {
    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut failures = 0;
        let mut said = String::new();
        loop {
            let pause = match self.look().await {
                Ok(pause) => {
                    failures = 0;
                    said.clear();
                    pause
                }
                Err(error) => {
                    let problem = error.to_string();
                    if problem != said {
                        tracing::warn!("membership: no question is answered: {problem}");
                        said = problem;
                    }
                    failures += 1;
                    LOOK_PAUSE.saturating_mul(failures).min(FAILURE_PAUSE_MAX)
                }
            };
            tokio::time::sleep(LOOK_PAUSE_MIN.min(pause)).await;
            // Boxes that were switched on together look at different times.
            tokio::select! {
                () = tokio::time::sleep(pause.mul_f64(0.75 + 0.5 * random())) => {}
                () = self.hints.wait() => {}
            }
        }
    }

    /// Looks for a question and answers it. Returns the pause before the next look.
    async fn look(&mut self) -> Result<Duration, ResponderError> {
        let Some(membership) = self.folder.membership()? else { return Ok(LOOK_PAUSE) };
        let Standing::Member { inbox } = &membership.standing else { return Ok(LOOK_PAUSE) };
        let answered = self.folder.answered()?;
        let now_ms = clock::FLOOR.now_millis();
        let client = self.client(&membership);
        let folder = membership.join.path.trim_end_matches('/');
        let HttpAnswer { status, body, .. } =
            client.get(&format!("{folder}/questions/{inbox}.json"), QUESTION_BYTES_MAX + 1).await?;
        match status {
            200 => {}
            404 | 410 => {
                self.refusals.was_gone = true;
                return Ok(LOOK_PAUSE);
            }
            status => return Err(ResponderError::Status(status)),
        }
        let ca = std::fs::read_to_string(self.folder.ca_file())
            .map_err(|error| FolderError::File { path: self.folder.ca_file(), error })?;
        let judge =
            QuestionJudge { device: &membership.device, ca: &ca, allowed: &self.allowed, answered: answered.as_ref() };
        match judge.judge(&body, now_ms) {
            Ok(question) => {
                let since_ms = answered.as_ref().and_then(|last| now_ms.checked_sub(last.answered_ms));
                if let Some(rest_ms) = since_ms.and_then(|since_ms| ANSWER_PAUSE_MS.checked_sub(since_ms)) {
                    return Ok(Duration::from_millis(rest_ms));
                }
                self.answer(&client, &membership, inbox, question).await?;
            }
            // The platform removes the file of a question only once it has read the answer. Later it has no reason to
            // publish it.
            Err(QuestionRefusal::Answered) if !self.refusals.was_gone => {}
            Err(refusal) => self.refuse(&body, refusal),
        }
        Ok(LOOK_PAUSE)
    }

    fn client(&self, Membership { join, .. }: &Membership) -> UploadClient {
        HttpClient::for_questions(self.egress.clone(), self.folder.connection(join))
    }

    fn refuse(&mut self, file: &[u8], refusal: QuestionRefusal) {
        if self.refusals.is_new(file, Instant::now()) {
            tracing::warn!("membership: a question of the platform is refused: {refusal}");
            self.audit.record_own(AuditEvent::QuestionRefused { cause: refusal.cause().into() });
        }
    }

    /// Answers once: a box that loses its power before its answer has left does not answer the question any more.
    async fn answer(
        &mut self,
        client: &UploadClient,
        membership: &Membership,
        inbox: &str,
        question: Question,
    ) -> Result<(), ResponderError> {
        let identity = self.folder.identity()?.ok_or(CertificateError::None)?;
        let serial = CertificateChain::from_pem(&identity)?.facts()?.serial;
        let key = private_key(&identity)?;
        let findings = self.findings.clone();
        let findings = blocking(move || findings.search()).await;
        let now_ms = clock::FLOOR.now_millis();
        let body = diagnosis::answer(&question, &membership.device, &findings, (&key, &serial), now_ms)?;

        let Question { id, kind, made_ms } = question;
        self.refusals.was_gone = false;
        self.folder.save_answered(&AnsweredQuestion { id: id.clone(), made_ms, answered_ms: now_ms })?;
        let mark = self.audit.mark();
        self.audit.record_own(AuditEvent::QuestionAnswered { question: kind.name().into(), id: id.clone() });
        if !self.audit.durable_since(mark).await {
            return Err(ResponderError::Unrecorded);
        }

        let path = format!("{}/requests/{inbox}/{id}.json", membership.join.path.trim_end_matches('/'));
        let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let HttpAnswer { status, .. } = client.put(&path, &json, Bytes::from(body)).await?;
        if !(200..300).contains(&status) {
            return Err(ResponderError::Status(status));
        }
        tracing::info!("membership: answered the question {} of the platform {}", kind.name(), membership.platform);
        Ok(())
    }
}
