// Command scenarios runs Go packages that use Redis, each against the server at the port of the first argument.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

// check returns an error if found is not expected.
func check(what string, found, expected any) error {
	if fmt.Sprint(found) != fmt.Sprint(expected) {
		return fmt.Errorf("%s is %v, expected %v", what, found, expected)
	}
	return nil
}

// goRedis uses commands, pipelines, optimistic transactions, scripts and channels, over both protocols.
func goRedis(ctx context.Context, address string) error {
	for _, protocol := range []int{2, 3} {
		client := redis.NewClient(&redis.Options{Addr: address, Protocol: protocol})
		defer client.Close()
		if err := client.FlushDB(ctx).Err(); err != nil {
			return err
		}
		if err := client.Set(ctx, "key", "value", time.Minute).Err(); err != nil {
			return err
		}
		ttl := client.TTL(ctx, "key").Val()
		missing := client.Get(ctx, "none").Err()
		commands, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.IncrBy(ctx, "count", 41)
			pipe.Incr(ctx, "count")
			pipe.Get(ctx, "key")
			return nil
		})
		if err != nil {
			return err
		}
		script := redis.NewScript(`return redis.call("incrby", KEYS[1], ARGV[1])`)
		ran, err := script.Run(ctx, client, []string{"count"}, 8).Int()
		if err != nil {
			return err
		}
		if err := counters(ctx, client); err != nil {
			return err
		}
		keys := 0
		iterator := client.Scan(ctx, 0, "*", 10).Iterator()
		for iterator.Next(ctx) {
			keys++
		}
		subscriber := client.Subscribe(ctx, "news")
		if _, err := subscriber.Receive(ctx); err != nil {
			return err
		}
		if err := client.Publish(ctx, "news", "hello").Err(); err != nil {
			return err
		}
		message, err := subscriber.ReceiveMessage(ctx)
		if err != nil {
			return err
		}
		subscriber.Close()
		err = errors.Join(
			check("the lifetime", ttl > 50*time.Second && ttl <= time.Minute, true),
			check("a missing key", missing, redis.Nil),
			check("the reply of INCR", commands[1].(*redis.IntCmd).Val(), 42),
			check("the reply of the script", ran, 50),
			check("the number of keys", keys, 3),
			check("the message", message.Payload, "hello"),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// counters increments a key by WATCH, MULTI and EXEC from several goroutines.
func counters(ctx context.Context, client *redis.Client) error {
	const workers, steps = 4, 25
	step := func(tx *redis.Tx) error {
		count, err := tx.Get(ctx, "watched").Int()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, "watched", count+1, 0)
			return nil
		})
		return err
	}
	var group sync.WaitGroup
	failed := make(chan error, workers)
	for range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			for done := 0; done < steps; {
				switch err := client.Watch(ctx, step, "watched"); {
				case err == nil:
					done++
				case !errors.Is(err, redis.TxFailedErr):
					failed <- err
					return
				}
			}
		}()
	}
	group.Wait()
	select {
	case err := <-failed:
		return err
	default:
		return check("the counter", client.Get(ctx, "watched").Val(), strconv.Itoa(workers*steps))
	}
}

// redisLock obtains, refreshes and releases a lock.
func redisLock(ctx context.Context, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	locker := redislock.New(client)
	lock, err := locker.Obtain(ctx, "lock", time.Second, nil)
	if err != nil {
		return err
	}
	_, taken := locker.Obtain(ctx, "lock", time.Second, nil)
	if err := lock.Refresh(ctx, time.Minute, nil); err != nil {
		return err
	}
	ttl, err := lock.TTL(ctx)
	if err != nil {
		return err
	}
	if err := lock.Release(ctx); err != nil {
		return err
	}
	return errors.Join(
		check("the second lock", taken, redislock.ErrNotObtained),
		check("the refreshed lifetime", ttl > 50*time.Second, true),
		check("the second release", lock.Release(ctx), redislock.ErrLockNotHeld),
	)
}

// redSync uses the Redlock algorithm on one server.
func redSync(ctx context.Context, address string) error {
	client := redis.NewClient(&redis.Options{Addr: address})
	defer client.Close()
	sync := redsync.New(goredis.NewPool(client))
	mutex := sync.NewMutex("mutex", redsync.WithExpiry(5*time.Second), redsync.WithTries(1))
	if err := mutex.LockContext(ctx); err != nil {
		return err
	}
	other := sync.NewMutex("mutex", redsync.WithTries(1)).LockContext(ctx)
	extended, err := mutex.ExtendContext(ctx)
	if err != nil {
		return err
	}
	released, err := mutex.UnlockContext(ctx)
	if err != nil {
		return err
	}
	return errors.Join(
		check("the second lock failed", other != nil, true),
		check("extended", extended, true),
		check("released", released, true),
	)
}

func main() {
	scenarios := []struct {
		name string
		run  func(context.Context, string) error
	}{
		{"go-redis", goRedis},
		{"bsm/redislock", redisLock},
		{"go-redsync", redSync},
	}
	address, failures := "127.0.0.1:"+os.Args[1], 0
	for _, scenario := range scenarios {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		if err := scenario.run(ctx, address); err != nil {
			failures++
			fmt.Printf("go: %s: FAILED: %v\n", scenario.name, err)
		} else {
			fmt.Printf("go: %s: ok\n", scenario.name)
		}
		cancel()
	}
	if failures > 0 {
		os.Exit(1)
	}
}
