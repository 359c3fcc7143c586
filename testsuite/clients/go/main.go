// Go's ethclient and bind, unmodified, against one node: client API_URL SECRET_KEY ARTIFACTS_JSON
//
// Prints what it saw as one JSON object; the test compares it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"os"
	"strings"
	"time"

	"github.com/ethereum/go-ethereum"
	"github.com/ethereum/go-ethereum/accounts/abi"
	"github.com/ethereum/go-ethereum/accounts/abi/bind/v2"
	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/ethclient"
	"github.com/ethereum/go-ethereum/rpc"
)

var (
	ctx, _ = context.WithTimeout(context.Background(), 2*time.Minute)
	bee    = common.HexToAddress("0x00000000000000000000000000000000000bee01")
)

// must ends the program if there is an error.
func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

// tokenOf reads the contract of that name: its ABI and its code.
func tokenOf(path string) (abi.ABI, []byte) {
	var artifacts struct {
		Contracts map[string]struct {
			ABI      json.RawMessage `json:"abi"`
			Bytecode string          `json:"bytecode"`
		} `json:"contracts"`
	}
	check(json.Unmarshal(must(os.ReadFile(path)), &artifacts))
	token := artifacts.Contracts["Token"]
	return must(abi.JSON(strings.NewReader(string(token.ABI)))), common.FromHex(token.Bytecode)
}

// hashOf takes a block's hash from the answer: header.Hash() is computed here, from Ethereum's form of the header.
func hashOf(client *ethclient.Client, number *big.Int) common.Hash {
	var block struct{ Hash common.Hash }
	check(client.Client().CallContext(ctx, &block, "eth_getBlockByNumber", fmt.Sprintf("%#x", number), false))
	return block.Hash
}

// empties counts the blocks of these without transactions, each of which is read whole.
func empties(client *ethclient.Client, heads []*types.Header) int {
	count := 0
	for _, head := range heads {
		block := must(client.BlockByNumber(ctx, head.Number))
		if block.NumberU64() == head.Number.Uint64() && len(block.Transactions()) == 0 {
			count++
		}
	}
	return count
}

// listen takes so many new heads.
func listen(socket *ethclient.Client, count int) []*types.Header {
	news := make(chan *types.Header)
	subscription := must(socket.SubscribeNewHead(ctx, news))
	defer subscription.Unsubscribe()
	var heads []*types.Header
	for len(heads) < count {
		select {
		case head := <-news:
			heads = append(heads, head)
		case err := <-subscription.Err():
			panic(fmt.Sprintf("the subscription ended: %v", err))
		case <-ctx.Done():
			panic("no new heads")
		}
	}
	return heads
}

func main() {
	url, path := os.Args[1], os.Args[3]
	key := must(crypto.HexToECDSA(strings.TrimPrefix(os.Args[2], "0x")))
	me := crypto.PubkeyToAddress(key.PublicKey)
	client := must(ethclient.DialContext(ctx, url))
	socket := must(ethclient.DialContext(ctx, strings.Replace(url, "http", "ws", 1)))
	chain := must(client.ChainID(ctx))
	seen := map[string]any{"chain": chain}

	// Blocks without transactions: the first one, and heads of an idle chain.
	genesis := must(client.BlockByNumber(ctx, common.Big0))
	heads := listen(socket, 3)
	next := heads[1]
	named := must(client.BlockByHash(ctx, next.ParentHash))
	seen["empty"] = []any{len(genesis.Transactions()), empties(client, heads)}
	seen["heads"] = []any{
		heads[2].Number.Uint64() - heads[0].Number.Uint64(),
		named.NumberU64() == heads[0].Number.Uint64(),
		hashOf(client, heads[0].Number) == next.ParentHash,
		heads[0].Hash() == next.ParentHash,
	}

	// A transfer by hand.
	tip, price := must(client.SuggestGasTipCap(ctx)), must(client.SuggestGasPrice(ctx))
	before := must(client.BalanceAt(ctx, bee, nil))
	transfer := must(types.SignNewTx(key, types.LatestSignerForChainID(chain), &types.DynamicFeeTx{
		ChainID: chain, Nonce: must(client.PendingNonceAt(ctx, me)), Gas: 21_000,
		GasTipCap: tip, GasFeeCap: new(big.Int).Mul(price, common.Big2), To: &bee, Value: big.NewInt(5),
	}))
	check(client.SendTransaction(ctx, transfer))
	receipt := must(bind.WaitMined(ctx, client, transfer.Hash()))
	seen["transfer"] = []any{receipt.Status, receipt.GasUsed, receipt.Type}
	seen["balance"] = new(big.Int).Sub(must(client.BalanceAt(ctx, bee, receipt.BlockNumber)), before)

	// The block that it is in, by number and by the hash that the receipt names.
	block := must(client.BlockByNumber(ctx, receipt.BlockNumber))
	sent := block.Transaction(transfer.Hash())
	byHash := must(client.BlockByHash(ctx, receipt.BlockHash))
	receipts := must(client.BlockReceipts(ctx, rpc.BlockNumberOrHashWithHash(receipt.BlockHash, false)))
	seen["full"] = []any{
		sent != nil && must(client.TransactionSender(ctx, sent, receipt.BlockHash, receipt.TransactionIndex)) == me,
		byHash.Transaction(transfer.Hash()) != nil,
		len(receipts) == len(block.Transactions()),
		must(client.TransactionCount(ctx, receipt.BlockHash)) == uint(len(receipts)),
	}

	// A contract, as generated bindings deploy and use it; its logs by filter and by subscription.
	token, code := tokenOf(path)
	opts := bind.NewKeyedTransactor(key, chain)
	opts.Context = ctx
	_, made, err := bind.DeployContract(opts, code, client, must(token.Pack("", "Test", "TST")))
	check(err)
	address := must(bind.WaitDeployed(ctx, client, made.Hash()))
	contract := bind.NewBoundContract(address, token, client, client, client)
	events, query := make(chan types.Log, 8), ethereum.FilterQuery{Addresses: []common.Address{address}}
	subscription := must(socket.SubscribeFilterLogs(ctx, query, events))
	minted := must(bind.WaitMined(ctx, client, must(contract.Transact(opts, "mint", me, big.NewInt(1000))).Hash()))
	moved := must(bind.WaitMined(ctx, client, must(contract.Transact(opts, "transfer", bee, big.NewInt(400))).Hash()))
	query.FromBlock = common.Big0
	values := func(logs []types.Log) (values []*big.Int) {
		for _, log := range logs {
			values = append(values, new(big.Int).SetBytes(log.Data))
		}
		return values
	}
	logs := must(client.FilterLogs(ctx, query))
	seen["logs"] = values(logs)
	seen["places"] = len(logs) == 2 && logs[0].BlockHash == minted.BlockHash && logs[1].BlockHash == moved.BlockHash
	seen["told"] = values([]types.Log{<-events, <-events})
	subscription.Unsubscribe()
	balance := func(number *big.Int) any {
		var out []any
		check(contract.Call(&bind.CallOpts{Context: ctx, BlockNumber: number}, &out, "balanceOf", me))
		return out[0]
	}
	seen["past"] = []any{balance(minted.BlockNumber), balance(nil)}

	// The block in the making, and what is missing.
	head := must(client.BlockNumber(ctx))
	pending := must(client.BlockByNumber(ctx, big.NewInt(int64(rpc.PendingBlockNumber))))
	seen["pending"] = []any{pending.NumberU64() > head, len(pending.Transactions()), must(client.PendingTransactionCount(ctx))}
	_, noBlock := client.BlockByNumber(ctx, big.NewInt(1_000_000_000))
	_, noReceipt := client.TransactionReceipt(ctx, common.HexToHash("0x07"))
	_, _, noTransaction := client.TransactionByHash(ctx, common.HexToHash("0x07"))
	var missing []bool
	for _, err := range []error{noBlock, noReceipt, noTransaction} {
		missing = append(missing, errors.Is(err, ethereum.NotFound))
	}
	seen["missing"] = missing
	check(json.NewEncoder(os.Stdout).Encode(seen))
}
