"""web3.py, unmodified, against one node: python web3py.py API_URL SECRET_KEY ARTIFACTS_JSON

Prints what it saw as one JSON object; the test compares it."""

import asyncio
import json
import sys

from web3 import AsyncHTTPProvider, AsyncWeb3, Web3, WebSocketProvider
from web3.exceptions import BlockNotFound, ContractCustomError, TransactionNotFound, Web3RPCError
from web3.middleware import SignAndSendRawMiddlewareBuilder

url, key, artifacts = sys.argv[1:]
with open(artifacts, encoding="utf-8") as file:
    token = json.load(file)["contracts"]["Token"]
w3 = Web3(Web3.HTTPProvider(url))
account = w3.eth.account.from_key(key)
w3.middleware_onion.inject(SignAndSendRawMiddlewareBuilder.build(account), layer=0)
w3.eth.default_account = me = account.address
bee = Web3.to_checksum_address("0x00000000000000000000000000000000000bee01")


def mined(tx_hash):
    return w3.eth.wait_for_transaction_receipt(tx_hash, poll_latency=0.02)


def error_of(what, error):
    try:
        what()
    except error as caught:
        return caught
    raise AssertionError(f"no {error.__name__}")


seen = {"chain": w3.eth.chain_id}

# Both kinds of envelopes, and the batch that one is in.
sent = mined(w3.eth.send_transaction({"to": bee, "value": 5}))
legacy = mined(w3.eth.send_transaction({"to": bee, "value": 6, "gasPrice": w3.eth.gas_price}))
block = w3.eth.get_block(sent.blockNumber, True)
seen["sent"] = [sent.type, sent.status, legacy.type, legacy.status]
seen["block"] = [block.transactions[sent.transactionIndex].hash == sent.transactionHash, block.hash == sent.blockHash]
pending = w3.eth.get_block("pending", True)
seen["pending"] = [pending.hash, pending.nonce, pending.miner, len(pending.transactions), pending.number > block.number]
seen["balance"] = w3.eth.get_balance(bee)

# A contract, its events in each way, and its errors.
contract = w3.eth.contract(abi=token["abi"], bytecode=token["bytecode"])
made = mined(contract.constructor("Test", "TST").transact())
contract = w3.eth.contract(address=made.contractAddress, abi=token["abi"])
minted = mined(contract.functions.mint(me, 1000).transact())
news = contract.events.Transfer().create_filter(from_block=minted.blockNumber, argument_filters={"to": bee})
moved = mined(contract.functions.transfer(bee, 400).transact())


def values(events):
    return [event.args.value for event in events]


seen["events"] = {
    "receipt": values(contract.events.Transfer().process_receipt(moved)),
    "logs": values(contract.events.Transfer().get_logs(from_block=0)),
    "filter": values(news.get_new_entries()),
    "all": values(news.get_all_entries()),
    "removed": w3.eth.uninstall_filter(news.filter_id),
}
revert = error_of(lambda: contract.functions.transfer(bee, 10**9).transact(), ContractCustomError)
seen["revert"] = revert.data.startswith("0x" + Web3.keccak(text="InsufficientBalance(address,uint256,uint256)").hex()[:8])

# States of the past: by number and by hash.
balance_of = contract.functions.balanceOf(me)
seen["past"] = {
    "call": [balance_of.call(block_identifier=which) for which in (made.blockNumber, minted.blockHash, "latest")],
    "nonce": w3.eth.get_transaction_count(me, made.blockNumber) - w3.eth.get_transaction_count(me, made.blockNumber - 1),
    "code": len(w3.eth.get_code(contract.address, made.blockNumber - 1)),
    "balance": w3.eth.get_balance(bee, sent.blockNumber - 1),
    "slot": int.from_bytes(w3.eth.get_storage_at(contract.address, 2, minted.blockNumber)),
}

# Calls with other states, lists, simulations, fees, traces.
call = {"from": me, "to": contract.address, "data": contract.encode_abi("transfer", [bee, 1])}
answer = w3.eth.call({"to": bee}, "latest", {bee: {"code": "0x602a5f5260205ff3"}})
seen["override"] = int.from_bytes(answer)
seen["access_list"] = [len(item["storageKeys"]) for item in w3.eth.create_access_list(call)["accessList"]]
simulated = w3.eth.simulate_v1({"blockStateCalls": [{"calls": [call]}]}, "latest")
seen["simulated"] = simulated[0]["calls"][0]["status"]
history = w3.eth.fee_history(2, "latest", [10, 50])
seen["fees"] = [len(history.baseFeePerGas), len(history.reward), w3.eth.max_priority_fee > 0]
seen["blob_base_fee"] = w3.eth.blob_base_fee
seen["raw"] = Web3.keccak(w3.eth.get_raw_transaction(moved.transactionHash)) == moved.transactionHash
seen["pool"] = sorted(w3.geth.txpool.status())
seen["trace"] = len(w3.tracing.trace_transaction(moved.transactionHash))

# Several requests in one body, and several at once.
numbers = range(w3.eth.block_number + 1)
with w3.batch_requests() as batch:
    for number in numbers:
        batch.add(w3.eth.get_block(number))
    batch.add(balance_of)
    *blocks, balance = batch.execute()
seen["batch"] = [[block.number for block in blocks] == list(numbers), balance]


async def at_once():
    client = AsyncWeb3(AsyncHTTPProvider(url))
    blocks = await asyncio.gather(*(client.eth.get_block(number) for number in numbers))
    await client.provider.disconnect()
    return [block.hash for block in blocks]


seen["async"] = asyncio.run(at_once()) == [block.hash for block in blocks]



async def told():
    numbers = []
    async with AsyncWeb3(WebSocketProvider(url.replace("http", "ws", 1))) as client:
        subscription = await client.eth.subscribe("newHeads")
        async for news in client.socket.process_subscriptions():
            numbers.append(news["result"]["number"])
            if len(numbers) == 3:
                return await client.eth.unsubscribe(subscription), numbers


stopped, numbers = asyncio.run(told())
seen["told"] = [stopped, [number - numbers[0] for number in numbers]]

# A delegation (EIP-7702), and a transaction that takes the place of another.
nonce = w3.eth.get_transaction_count(me)
delegate = "0x000000000000000000000000000000000000dEaD"
signed = account.sign_authorization({"chainId": w3.eth.chain_id, "address": delegate, "nonce": nonce + 1})
delegated = mined(w3.eth.send_transaction({"to": bee, "value": 0, "authorizationList": [signed]}))
seen["delegated"] = [delegated.type, w3.eth.get_code(me).hex() == "ef0100" + delegate[2:].lower()]
signed = account.sign_authorization({"chainId": w3.eth.chain_id, "address": "0x" + "00" * 20, "nonce": nonce + 3})
mined(w3.eth.send_transaction({"to": bee, "value": 0, "authorizationList": [signed]}))
seen["undelegated"] = w3.eth.get_code(me).hex()
nonce = w3.eth.get_transaction_count(me)
waiting = w3.eth.send_transaction({"to": bee, "value": 1, "nonce": nonce + 1, "gas": 21_000})
replaced = w3.eth.replace_transaction(waiting, {"from": me, "to": bee, "value": 2, "nonce": nonce + 1, "gas": 21_000})
w3.eth.send_transaction({"to": bee, "value": 1, "nonce": nonce, "gas": 21_000})
seen["replaced"] = [mined(replaced).status, w3.eth.get_transaction(replaced).value]

# Missing things.
low = error_of(lambda: w3.eth.send_transaction({"to": bee, "value": 1, "nonce": 0}), Web3RPCError)
error_of(lambda: w3.eth.get_block(10**9), BlockNotFound)
error_of(lambda: w3.eth.get_transaction_receipt("0x" + "07" * 32), TransactionNotFound)
seen["low_nonce"] = low.rpc_response["error"]["message"].startswith("nonce too low")
print(json.dumps(seen))
