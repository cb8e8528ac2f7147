//! Analyses that were begun, with their results until they are old. They belong to their caller: nobody else finds them.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ledge_base::clock;
use ledge_base::principal::Principal;
use ledge_part::api_error::{ApiError, StatusCode};
use ledge_protocol::document_intelligence::DocumentModel;
use tokio::sync::oneshot;

/// The time after which a caller with too many operations may try again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// The id of an operation, as a UUID of version 4 (RFC 9562): 122 random bits, which nobody guesses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OperationId(u128);

impl OperationId {
    fn generate() -> Result<Self, ApiError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, format!("the system has no random numbers: {error}"))
        })?;
        let version = 0x4 << 76;
        let variant = 0x2 << 62;
        Ok(Self(u128::from_be_bytes(bytes) & !(0xf << 76) & !(0x3 << 62) | version | variant))
    }
}

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |shift: u32, digits: u32| (self.0 >> shift) & ((1 << (4 * digits)) - 1);
        write!(
            f,
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            part(96, 8),
            part(80, 4),
            part(64, 4),
            part(48, 4),
            part(0, 12)
        )
    }
}

impl FromStr for OperationId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.replace('-', "");
        let id = u128::from_str_radix(&digits, 16).map(Self).map_err(drop)?;
        if id.to_string().eq_ignore_ascii_case(text) { Ok(id) } else { Err(()) }
    }
}

/// The result of an operation. Its bytes count as memory.
#[derive(Debug, Clone)]
pub struct OperationOutcome {
    /// The operation as JSON, with its analysis or its error.
    pub body: Bytes,
    /// The document with a text layer, if it was asked for.
    pub pdf: Option<Bytes>,
}

/// An operation of a caller.
#[derive(Debug, Clone)]
pub struct Operation {
    owner: Principal,
    model: DocumentModel,
    /// Milliseconds since 1970.
    pub created_ms: u64,
    ended_ms: u64,
    /// None while it runs.
    pub outcome: Option<OperationOutcome>,
}

/// Ends, with an error, once an operation is dropped.
pub type OperationForgotten = oneshot::Receiver<Infallible>;

/// An operation, and the end of the wait for its age.
#[derive(Debug)]
struct KeptOperation {
    operation: Operation,
    _forgotten: oneshot::Sender<Infallible>,
}

/// The operations of all callers.
#[derive(Debug, Default)]
pub struct Operations(Mutex<HashMap<OperationId, KeptOperation>>);

impl Operations {
    fn all(&self) -> MutexGuard<'_, HashMap<OperationId, KeptOperation>> {
        // Nothing panics under this lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins an operation. A caller that has `most` loses its oldest result, or waits while all of them run.
    pub fn begin(
        &self,
        owner: &Principal,
        model: DocumentModel,
        created_ms: u64,
        most: usize,
    ) -> Result<(OperationId, OperationForgotten), ApiError> {
        let id = OperationId::generate()?;
        let mut all = self.all();
        if all.values().filter(|kept| kept.operation.owner == *owner).count() >= most
            && !Self::forget_oldest(&mut all, owner)
        {
            let message = format!(
                "{most} analyses of {owner} run already (documents.max_operations); send this one again when one has ended"
            );
            return Err(ApiError::later(StatusCode::TOO_MANY_REQUESTS, message, RETRY_AFTER));
        }
        let (sender, forgotten) = oneshot::channel();
        let operation = Operation { owner: owner.clone(), model, created_ms, ended_ms: 0, outcome: None };
        all.insert(id, KeptOperation { operation, _forgotten: sender });
        Ok((id, forgotten))
    }

    /// Drops the oldest result of a caller, for the memory that it takes; false if it has none.
    pub fn make_room(&self, owner: &Principal) -> bool {
        Self::forget_oldest(&mut self.all(), owner)
    }

    fn forget_oldest(all: &mut HashMap<OperationId, KeptOperation>, owner: &Principal) -> bool {
        let own = all.iter().filter(|(_, kept)| kept.operation.owner == *owner);
        let ended = own.filter(|(_, kept)| kept.operation.outcome.is_some());
        let oldest = ended.min_by_key(|(_, kept)| kept.operation.ended_ms).map(|(id, _)| *id);
        oldest.is_some_and(|id| all.remove(&id).is_some())
    }

    pub fn end(&self, id: OperationId, outcome: OperationOutcome) {
        if let Some(KeptOperation { operation, .. }) = self.all().get_mut(&id) {
            operation.ended_ms = clock::unix_millis();
            operation.outcome = Some(outcome);
        }
    }

    pub fn forget(&self, id: OperationId) {
        self.all().remove(&id);
    }

    /// The operation of this caller with this model.
    pub fn find(&self, id: &str, model: DocumentModel, caller: &Principal) -> Result<Operation, ApiError> {
        let id = id.parse().ok();
        let all = self.all();
        let found = id.and_then(|id: OperationId| Some(&all.get(&id)?.operation));
        let own = found.filter(|operation| operation.owner == *caller && operation.model == model);
        own.cloned().ok_or_else(|| {
            let message =
                "there is no such result: it is kept for documents.keep_results_s seconds, for its caller alone";
            ApiError::new(StatusCode::NOT_FOUND, message)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::sync::oneshot::error::TryRecvError;

    use super::*;

    const READ: DocumentModel = DocumentModel::Read;

    fn ended() -> OperationOutcome {
        OperationOutcome { body: Bytes::from_static(b"{}"), pdf: None }
    }

    #[test]
    fn an_operation_belongs_to_its_caller() {
        let operations = Operations::default();
        let (id, mut forgotten) = operations.begin(&Principal::Others, READ, 0, 1).unwrap();
        let found = |caller: &Principal, model| operations.find(&id.to_string(), model, caller).is_ok();
        assert!(found(&Principal::Others, READ));
        assert!(!found(&Principal::Local, READ));
        assert!(!found(&Principal::Others, DocumentModel::Layout));
        assert_eq!(forgotten.try_recv(), Err(TryRecvError::Empty));
        operations.forget(id);
        assert!(!found(&Principal::Others, READ));
        assert_eq!(forgotten.try_recv(), Err(TryRecvError::Closed));
    }

    #[test]
    fn a_caller_loses_its_oldest_result_and_waits_while_all_run() {
        let operations = Operations::default();
        let begin = || operations.begin(&Principal::Others, READ, 0, 2);
        let [(first, _), (second, mut forgotten)] = [(); 2].map(|()| begin().unwrap());
        assert_eq!(begin().unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        operations.begin(&Principal::Local, READ, 0, 2).unwrap();
        operations.end(second, ended());
        begin().unwrap();
        assert_eq!(forgotten.try_recv(), Err(TryRecvError::Closed));
        assert!(operations.find(&first.to_string(), READ, &Principal::Others).is_ok());
        assert!(operations.find(&second.to_string(), READ, &Principal::Others).is_err());
    }

    proptest! {
        #[test]
        fn an_id_is_read_as_it_is_written(bits in any::<u128>(), text in ".{0,40}") {
            let id = OperationId(bits);
            prop_assert_eq!(id.to_string().parse(), Ok(id));
            if let Ok(read) = text.parse::<OperationId>() {
                prop_assert!(read.to_string().eq_ignore_ascii_case(&text));
            }
        }
    }

    #[test]
    fn ids_are_random_uuids() {
        let id = OperationId::generate().unwrap().to_string();
        assert_eq!((id.len(), id.as_bytes()[14], id.as_bytes()[23]), (36, b'4', b'-'));
        assert!("89ab".contains(char::from(id.as_bytes()[19])));
    }
}
