//! [`SubscriptionKind`]: what `eth_subscribe` can listen for.

/// The kinds of subscriptions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, strum::VariantArray, strum::IntoStaticStr)]
#[strum(serialize_all = "camelCase")]
pub(crate) enum SubscriptionKind {
    NewHeads = 0,
    Logs = 1,
    #[strum(serialize = "newPendingTransactions")]
    Pending = 2,
    Syncing = 3,
}

impl SubscriptionKind {
    pub(crate) const ALL: &'static [SubscriptionKind] = <SubscriptionKind as strum::VariantArray>::VARIANTS;

    pub(crate) fn name(self) -> &'static str {
        self.into()
    }

    /// The kind of this name, if there is one.
    pub(crate) fn of(name: &str) -> Option<SubscriptionKind> {
        SubscriptionKind::ALL.iter().copied().find(|kind| kind.name() == name)
    }
}
