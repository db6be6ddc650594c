import argparse
import logging
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch import optim
from torch.utils.data import DataLoader, Dataset, random_split

dir_checkpoint = Path('./checkpoints/')


class DoubleConv(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1), nn.GroupNorm(2, cout), nn.ReLU(inplace=True))

    def forward(self, x):
        return self.net(x)


class UNet(nn.Module):
    def __init__(self, n_channels, n_classes):
        super().__init__()
        self.n_channels, self.n_classes = n_channels, n_classes
        self.inc = DoubleConv(n_channels, 4)
        self.down = DoubleConv(4, 8)
        self.up = DoubleConv(12, 4)
        self.outc = nn.Conv2d(4, n_classes, 1)

    def forward(self, x):
        a = self.inc(x)
        b = F.interpolate(self.down(F.max_pool2d(a, 2)), scale_factor=2)
        return self.outc(self.up(torch.cat([a, b], 1)))


class Shapes(Dataset):
    def __init__(self, n):
        g = torch.Generator().manual_seed(5)
        self.images = torch.rand(n, 1, 8, 8, generator=g)
        self.masks = (self.images[:, 0] > 0.5).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return {'image': self.images[i], 'mask': self.masks[i]}


def dice_loss(pred, target):
    inter = 2 * (pred * target).sum(dim=(1, 2))
    return 1 - ((inter + 1) / (pred.sum(dim=(1, 2)) + target.sum(dim=(1, 2)) + 1)).mean()


@torch.inference_mode()
def evaluate(net, dataloader, device):
    net.eval()
    num_val_batches = len(dataloader)
    dice_score = 0
    for batch in dataloader:
        image, mask_true = batch['image'], batch['mask']
        image = image.to(device=device, dtype=torch.float32)
        mask_true = mask_true.to(device=device, dtype=torch.long)
        mask_pred = net(image)
        assert mask_true.min() >= 0 and mask_true.max() < net.n_classes, 'True mask indices should be in [0, n_classes['
        dice_score += 1 - dice_loss(mask_pred.argmax(1).float(), mask_true.float())
    net.train()
    return dice_score / max(num_val_batches, 1)


def train_model(model, device, epochs: int = 2, batch_size: int = 16, learning_rate: float = 1e-2, val_percent: float = 0.2, save_checkpoint: bool = True):
    dataset = Shapes(160)
    n_val = int(len(dataset) * val_percent)
    n_train = len(dataset) - n_val
    train_set, val_set = random_split(dataset, [n_train, n_val], generator=torch.Generator().manual_seed(0))
    loader_args = dict(batch_size=batch_size, num_workers=0, pin_memory=False)
    train_loader = DataLoader(train_set, shuffle=True, **loader_args)
    val_loader = DataLoader(val_set, shuffle=False, drop_last=True, **loader_args)
    logging.info(f'''Starting training:
        Epochs:          {epochs}
        Batch size:      {batch_size}
        Training size:   {n_train}
    ''')
    optimizer = optim.RMSprop(model.parameters(), lr=learning_rate, weight_decay=1e-8, momentum=0.5, foreach=True)
    scheduler = optim.lr_scheduler.ReduceLROnPlateau(optimizer, 'max', patience=5)  # goal: maximize Dice score
    criterion = nn.CrossEntropyLoss() if model.n_classes > 1 else nn.BCEWithLogitsLoss()
    global_step = 0
    for epoch in range(1, epochs + 1):
        model.train()
        epoch_loss = 0
        for batch in train_loader:
            images, true_masks = batch['image'], batch['mask']
            assert images.shape[1] == model.n_channels, \
                f'Network has been defined with {model.n_channels} input channels, ' \
                f'but loaded images have {images.shape[1]} channels.'
            images = images.to(device=device, dtype=torch.float32, memory_format=torch.channels_last)
            true_masks = true_masks.to(device=device, dtype=torch.long)
            masks_pred = model(images)
            loss = criterion(masks_pred, true_masks)
            loss += dice_loss(F.softmax(masks_pred, dim=1)[:, 1], true_masks.float())
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            global_step += 1
            epoch_loss += loss.item()
            division_step = (n_train // (2 * batch_size))
            if division_step > 0:
                if global_step % division_step == 0:
                    val_score = evaluate(model, val_loader, device)
                    scheduler.step(val_score)
                    print('Validation Dice score: {:.5f}'.format(val_score))
        print(f'epoch {epoch} {epoch_loss / len(train_loader):.5f}')
        if save_checkpoint:
            Path(dir_checkpoint).mkdir(parents=True, exist_ok=True)
            state_dict = model.state_dict()
            torch.save(state_dict, str(dir_checkpoint / 'checkpoint_epoch{}.pth'.format(epoch)))
            logging.info(f'Checkpoint {epoch} saved!')


if __name__ == '__main__':
    parser = argparse.ArgumentParser()
    parser.add_argument('--load', '-f', type=str, default=False)
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format='%(levelname)s: %(message)s')
    torch.manual_seed(0)
    device = torch.device('cuda' if torch.cuda.is_available() else 'cpu')
    logging.info(f'Using device {device}')
    model = UNet(n_channels=1, n_classes=2)
    model = model.to(memory_format=torch.channels_last)
    if args.load:
        state_dict = torch.load(args.load, map_location=device)
        model.load_state_dict(state_dict)
    model.to(device=device)
    train_model(model=model, device=device)
