//! The route of inboxes: their state.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use axum::routing::get;
use ledge_part::reply::json;
use ledge_part::route::needs::VIEW;
use ledge_part::route::{Route, RouteScope};
use serde::{Deserialize, Serialize};

use crate::deliver::{Delivery, DeliveryStatus};
use crate::inbox::{Inbox, InboxStatus};
use crate::inboxes::Inboxes;

/// The routes of inboxes.
pub const ROUTES: &[Route<Inboxes>] = &[Route::get("/inboxes", VIEW, || get(status)).scope(RouteScope::Box)];

/// The state of all inboxes.
#[derive(Debug, Serialize, Deserialize)]
pub struct InboxesDocument {
    pub inboxes: Vec<InboxDocument>,
}

/// The state of an inbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InboxDocument {
    pub name: String,
    /// Documents since the start.
    pub read: u64,
    /// Files since the start that are no readable documents.
    pub failed: u64,
    /// Files in the folder, and those that are being read.
    pub waiting: u64,
    /// The reason why files wait.
    pub problem: Option<String>,
    /// The other boxes that claimed files more than an hour ago and still have them, with their numbers.
    pub left_by_others: BTreeMap<String, usize>,
    pub receivers: Vec<ReceiverDocument>,
}

/// The state of a receiver of messages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReceiverDocument {
    /// `webhook` or `mqtt`.
    pub way: String,
    /// Messages since the start.
    pub sent: u64,
    /// Messages that it has not got yet.
    pub waiting: u64,
    /// The reason why the last message did not arrive.
    pub error: Option<String>,
}

impl InboxDocument {
    pub(crate) fn new<'a>(inbox: &Inbox, deliveries: impl Iterator<Item = &'a Arc<Delivery>>) -> Self {
        let InboxStatus { read, failed, waiting, problem, left_by_others } = inbox.status();
        let left_by_others = left_by_others.into_iter().collect();
        let receiver = |delivery: &Arc<Delivery>| {
            let DeliveryStatus { sent, waiting, error } = delivery.status();
            ReceiverDocument { way: delivery.way().name().to_owned(), sent, waiting, error }
        };
        let receivers = deliveries.map(receiver).collect();
        Self { name: inbox.config.name.to_string(), read, failed, waiting, problem, left_by_others, receivers }
    }
}

/// `GET /inboxes`.
async fn status(State(inboxes): State<Inboxes>) -> Response {
    json(&InboxesDocument { inboxes: inboxes.documents() })
}
