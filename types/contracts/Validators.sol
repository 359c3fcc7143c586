// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// The validators that a chain wants. The genesis places this code, without a constructor, and its first storage.
///
/// A change counts from the end of the epoch on: the batch `lastBatch` ends it, and its certificate names the validators that
/// are in the storage then. Nodes read the storage (types/src/validators_contract.rs), never the code.
contract Validators {
    struct Validator {
        bytes32 publicKey;
        address feeRecipient;
    }

    uint256 private constant VALIDATORS_MAX = 128;

    // Slots 0 to 6, in this order. Nodes read 3 to 6.
    address public owner;
    address public offeredTo;
    uint256 public epochBatches;
    uint256 public lastBatch;
    uint256 public failuresAny;
    uint256 public failuresCommission;
    Validator[] private wanted;

    event ValidatorAdded(bytes32 indexed publicKey, address feeRecipient, uint256 lastBatch);
    event ValidatorRemoved(bytes32 indexed publicKey, uint256 lastBatch);
    event FeeRecipientChanged(bytes32 indexed publicKey, address feeRecipient, uint256 lastBatch);
    event FailuresChanged(uint256 any, uint256 commission, uint256 lastBatch);
    event OwnerChanged(address indexed from, address indexed to);

    modifier onlyOwner() {
        require(msg.sender == owner, "only the owner of the validators contract may change it");
        _;
    }

    /// Adds a validator behind the others. The first of them proposes first.
    function add(bytes32 publicKey, address feeRecipient) external onlyOwner {
        require(publicKey != 0, "a public key is not zero");
        require(_find(publicKey) == wanted.length, "this public key is a validator already");
        require(wanted.length < VALIDATORS_MAX, "there may be at most 128 validators");
        wanted.push(Validator(publicKey, feeRecipient));
        emit ValidatorAdded(publicKey, feeRecipient, _endEpoch());
    }

    /// Removes a validator; those behind it move up.
    function remove(bytes32 publicKey) external onlyOwner {
        uint256 last = wanted.length - 1;
        uint256 index = _find(publicKey);
        require(index <= last, "this public key is not a validator");
        _requireFits(last, failuresAny, failuresCommission);
        for (; index < last; index++) wanted[index] = wanted[index + 1];
        wanted.pop();
        emit ValidatorRemoved(publicKey, _endEpoch());
    }

    /// Lets a validator's fees go elsewhere.
    function setFeeRecipient(bytes32 publicKey, address feeRecipient) external onlyOwner {
        uint256 index = _find(publicKey);
        require(index < wanted.length, "this public key is not a validator");
        wanted[index].feeRecipient = feeRecipient;
        emit FeeRecipientChanged(publicKey, feeRecipient, _endEpoch());
    }

    /// How many validators may fail in any way, and how many of them by doing what they must not.
    function setFailures(uint256 any, uint256 commission) external onlyOwner {
        _requireFits(wanted.length, any, commission);
        (failuresAny, failuresCommission) = (any, commission);
        emit FailuresChanged(any, commission, _endEpoch());
    }

    /// Lets somebody else become the owner, who has to accept it: nobody gives the chain to a mistyped address.
    function offerOwnership(address to) external onlyOwner {
        offeredTo = to;
    }

    function acceptOwnership() external {
        require(msg.sender == offeredTo, "the ownership is not offered to this account");
        emit OwnerChanged(owner, msg.sender);
        (owner, offeredTo) = (msg.sender, address(0));
    }

    function count() external view returns (uint256) {
        return wanted.length;
    }

    function validators() external view returns (Validator[] memory) {
        return wanted;
    }

    /// The position of a validator, or the number of them all if it is none.
    function _find(bytes32 publicKey) private view returns (uint256 index) {
        uint256 length = wanted.length;
        while (index < length && wanted[index].publicKey != publicKey) index++;
    }

    function _requireFits(uint256 length, uint256 any, uint256 commission) private pure {
        bool bounded = any <= VALIDATORS_MAX && commission <= VALIDATORS_MAX;
        require(
            bounded && length > 2 * any + commission,
            "too few validators: there must be more than 2 * failuresAny + failuresCommission"
        );
    }

    /// The end of this epoch: this batch, or the next one whose number is a multiple of `epochBatches`.
    function _endEpoch() private returns (uint256 last) {
        uint256 every = epochBatches == 0 ? 1 : epochBatches;
        last = ((block.number + every - 1) / every) * every;
        lastBatch = last;
    }
}
